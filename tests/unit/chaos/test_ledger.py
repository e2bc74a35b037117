from tests.chaos.ledger import read_node


def test_a_node_that_sends_and_receives_is_empty_when_both_of_its_sides_are() -> None:
    scheduler = {"free_blocks": 9, "num_blocks": 9, "totals": {"started": 1}}
    other = {"reservations": 1, "totals": {"started": 2}}
    worker = {"totals": {"committed": 3}, "reverse": {"quarantined_blocks": 2, "totals": {"loaded": 4}}}

    one = read_node({"transfers": [], "scheduler": scheduler, "worker": {"totals": {}}})
    both = read_node({"transfers": [], "scheduler": scheduler | {"reverse": other}, "worker": worker})

    assert (one.is_empty, both.is_empty) == (True, False)
    assert (both.reservations, both.quarantined_blocks) == (1, 2)
    assert both.totals == {"scheduler_started": 3, "committed": 3, "loaded": 4}
