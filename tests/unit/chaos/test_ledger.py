from typing import Any

from tests.chaos.ledger import read_node, read_open, read_views, tag_of


def answer(*transfers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What a node answers to `GET /baton/transfers`."""
    scheduler = {"free_blocks": 10, "num_blocks": 10, "totals": {"transfers": 3}} | more
    return {"transfers": list(transfers), "scheduler": scheduler, "worker": {"totals": {"committed": 2}}}


PREFILL = {
    "transfer_id": "t1",
    "scheduler": {"request_id": "cmpl-chaos-17-prefill-0-82d8efbe", "role": "prefill", "state": "running"},
    "worker": {"bytes_pushed": 300, "bytes_expected": 800},
}
DECODE = {
    "transfer_id": "t1",
    "scheduler": {"request_id": "cmpl-chaos-17-0-11d8ef00", "role": "decode", "state": "reserved"},
}


def test_a_tag_is_found_in_both_legs_request_ids() -> None:
    """The engine puts its own text around the id that the client chose."""
    assert tag_of("cmpl-chaos-17-prefill-0-82d8efbe") == "chaos-17"
    assert tag_of("cmpl-chaos-17-0-82d8efbe") == "chaos-17"
    assert tag_of("cmpl-2f1e-0-82d8efbe") == ""


def test_two_attempts_at_one_request_are_not_mixed() -> None:
    """After a retry the same tag has another transfer."""
    view = read_views({"p0": answer(PREFILL), "d1": answer(DECODE | {"transfer_id": "t2"})})["chaos-17"]

    assert view.decode is None


def test_what_only_a_worker_knows_of_is_open_nevertheless() -> None:
    """Such as a reservation that is being revoked after its request has gone."""
    revoking = {"transfer_id": "t9", "worker": {"state": "revoking"}}

    assert read_open([answer(PREFILL), answer(revoking)]) == {"t1", "t9"}


def test_a_node_is_empty_when_nothing_at_all_is_left() -> None:
    """Blocks, transfers, reservations."""
    assert read_node(answer()).is_empty
    assert not read_node(answer(free_blocks=9)).is_empty
    assert not read_node(answer(DECODE)).is_empty
    assert not read_node(answer(reservations=1)).is_empty
