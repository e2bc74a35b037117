import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from baton.contracts.kv_transfer import (
    KEY,
    MAX_START_CHOICES,
    MAX_START_TOKENS,
    Grid,
    Grids,
    Role,
    SignatureError,
    TransferParams,
    TransferParamsError,
    is_transfer_id,
    new_transfer_id,
    sign,
    verify,
)
from baton.contracts.secret import ClusterSecret
from tests.fuzz.values import HALF_A_PAIR, mutate

SECRET = ClusterSecret(b"0123456789abcdef")
A, B = b"secret A, in use", b"secret B, to come"
PARAMS = TransferParams(transfer_id="ab" * 16, role="decode", peer="tcp://10.0.0.1:9100")


@pytest.mark.parametrize(("role", "peer"), [("prefill", ""), ("decode", "tcp://10.0.0.1:9100")])
def test_what_is_signed_can_be_verified(role: Role, peer: str) -> None:
    """Both legs' parameters survive the trip."""
    params = TransferParams(transfer_id=new_transfer_id(), role=role, peer=peer)

    assert verify(sign(params, SECRET), SECRET) == params


@pytest.mark.parametrize(
    ("name", "value"),
    [("id", "cd" * 16), ("role", "prefill"), ("peer", "tcp://evil:1"), ("sig", "0" * 64), ("sig", "é")],
)
def test_a_changed_field_breaks_the_signature(name: str, value: str) -> None:
    """Nobody can point a node at another peer, role or transfer."""
    signed = changed(**{name: value})

    with pytest.raises(TransferParamsError, match="not signed"):
        verify(signed, SECRET)


@pytest.mark.parametrize(
    ("name", "value"),
    [("relay", True), ("start", [[7]]), ("start", [[4, 5, 7]]), ("start", [[4], [5]]), ("start", [[], [4, 5]])],
)
def test_what_a_leg_does_with_its_first_tokens_is_signed(name: str, value: object) -> None:
    """Nobody can have a node begin an answer with tokens, or end it after one."""
    signed = sign(replace(PARAMS, relays=name == "relay", start=((7,),) if name == "relay" else ((4, 5),)), SECRET)
    assert verify(signed, SECRET).relays is (name == "relay")

    signed[KEY][name] = False if name == "relay" else value
    with pytest.raises(SignatureError):
        verify(signed, SECRET)


def test_start_survives_the_trip() -> None:
    """By choice; some have no tokens."""
    params = replace(PARAMS, start=((), (5, 7), ()))

    assert verify(json.loads(json.dumps(sign(params, SECRET))), SECRET) == params


@pytest.mark.parametrize(
    "value",
    [
        *([], [[]], "7", [7], [[True]], [[-1]], [[1 << 31]], [[0.5]], {"0": [7]}, [[7], {"7": 7}], [[7], "7"]),
        *([[7]] + [[]] * MAX_START_CHOICES, [[7] * MAX_START_TOKENS, [7]]),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_start_is_a_list_of_lists_of_token_ids(value: object) -> None:
    """Not all empty; nothing else is taken for one."""
    with pytest.raises(TransferParamsError, match="malformed"):
        verify(changed(start=value), SECRET)


TWO_BY_TWO = Grids(prefill=Grid(tp=2, pp=2), decode=Grid(tp=1, pp=1))


def test_grids_are_signed() -> None:
    """Nobody can make a node believe in other ranks than the proxy saw."""
    signed = sign(replace(PARAMS, grids=TWO_BY_TWO), SECRET)
    assert verify(signed, SECRET).grids == TWO_BY_TWO

    signed[KEY]["grids"] = [[2, 1], [1, 1]]
    with pytest.raises(SignatureError):
        verify(signed, SECRET)


def test_single_ranks_are_signed_as_earlier_versions_sign() -> None:
    """A proxy of this version serves nodes that have never heard of grids, and the other way round."""
    assert "grids" not in sign(PARAMS, SECRET)[KEY]


@pytest.mark.parametrize(
    "grids", ["2x1", [], [[1, 1]], [[1, 1], [1]], [[0, 1], [1, 1]], [[1, 1], [1, 1.0]], [[1, 1], [1, 5_000]], [1, 2]]
)
def test_malformed_grids_are_refused(grids: object) -> None:
    """Before anything is counted in them."""
    with pytest.raises(TransferParamsError, match="malformed"):
        verify(changed(grids=grids), SECRET)


def test_another_clusters_signature_is_refused() -> None:
    """Two deployments do not accept each other's transfers."""
    with pytest.raises(TransferParamsError, match="not signed"):
        verify(sign(PARAMS, ClusterSecret(b"another-cluster!")), SECRET)


def test_fields_cannot_be_shifted_into_each_other() -> None:
    """The signature covers where one field ends and the next begins."""
    with pytest.raises(TransferParamsError):
        verify(changed(id="ab" * 15, role="ab\ndecode"), SECRET)


@pytest.mark.parametrize("value", [None, "text", [], {}, {KEY: None}, {KEY: "text"}, {"do_remote_decode": True}])
def test_what_is_not_ours_is_refused(value: object) -> None:
    """Other connectors' parameters and rubbish are named as such."""
    with pytest.raises(TransferParamsError, match="carries no 'baton' object"):
        verify(value, SECRET)


@pytest.mark.parametrize("version", [None, 0, 1, 3, "2"])
def test_another_protocol_version_is_refused_by_name(version: object) -> None:
    """The sentence names both versions."""
    with pytest.raises(TransferParamsError, match="this node speaks 2"):
        verify(changed(v=version), SECRET)


@pytest.mark.parametrize("transfer_id", [None, 5, "", "AB" * 16, "ab" * 15, "zz" * 16, "ab" * 16 + "\n"])
def test_a_malformed_transfer_id_is_refused(transfer_id: object) -> None:
    """Ids are 32 lower-case hex digits and nothing else."""
    with pytest.raises(TransferParamsError, match="transfer id"):
        verify(changed(id=transfer_id), SECRET)


@pytest.mark.parametrize(
    ("name", "value"), [("role", "both"), ("role", None), ("peer", None), ("peer", 5), ("sig", None)]
)
def test_malformed_fields_are_refused(name: str, value: object) -> None:
    """Wrong types are refused before the signature is computed."""
    with pytest.raises(TransferParamsError, match="malformed"):
        verify(changed(**{name: value}), SECRET)


def test_transfer_ids_are_random() -> None:
    """Ids of different transfers do not meet."""
    assert len({new_transfer_id() for _ in range(1000)}) == 1000


def changed(**fields: Any) -> dict[str, Any]:
    """Return signed parameters with some fields replaced afterwards."""
    return {KEY: sign(PARAMS, SECRET)[KEY] | fields}


@pytest.mark.parametrize(
    ("proxy", "node"),
    [((A,), (A, B)), ((A, B), (A,)), ((A, B), (B, A)), ((B, A), (A, B)), ((B, A), (B,)), ((B,), (B, A))],
)
def test_parameters_pass_between_neighbouring_steps_of_a_rotation(
    proxy: tuple[bytes, ...], node: tuple[bytes, ...]
) -> None:
    """Processes take the new secret one by one; no request is refused meanwhile."""
    assert verify(sign(PARAMS, ClusterSecret(*proxy)), ClusterSecret(*node)) == PARAMS


def test_a_secret_that_has_been_removed_signs_nothing_any_more() -> None:
    """The end of a rotation: what the old secret signed is refused."""
    with pytest.raises(SignatureError):
        verify(sign(PARAMS, ClusterSecret(A)), ClusterSecret(B))


@pytest.mark.parametrize(
    "fields",
    [{"v": True}, {"v": 1.0}, {"v": 10**5000}, {"peer": HALF_A_PAIR}, {"sig": HALF_A_PAIR}, {"peer": "x" * 600}],
)
def test_values_that_only_a_parser_could_make_are_refused(fields: dict[str, Any]) -> None:
    """Regression: half a surrogate pair in `peer` or `sig` was an exception of another kind, which no caller expects."""
    with pytest.raises(TransferParamsError) as caught:
        verify(changed(**fields), SECRET)

    assert len(str(caught.value)) < 200


def test_whatever_is_accepted_is_what_was_signed() -> None:
    """30,000 mutations: an error of the one kind, or the very parameters that the proxy signed."""
    random_ = random.Random(4)
    signed = sign(PARAMS, SECRET)
    verdicts = Counter[str]()
    for _ in range(30_000):
        value = signed
        for _ in range(random_.randint(1, 3)):
            value = mutate(value, random_)
        verdicts[verdict(value)] += 1

    assert set(verdicts) == {"accepted", "malformed_params", "params_version", "bad_signature"}
    assert min(verdicts.values()) > 100, verdicts


def verdict(value: object) -> str:
    """Verify something, and say what came of it."""
    try:
        params = verify(value, SECRET)
    except TransferParamsError as exc:
        return exc.kind
    assert params == PARAMS
    return "accepted"


def test_several_answers_have_transfers_of_their_own_only_where_that_is_signed() -> None:
    """The first one's has the name that the proxy knows."""
    params = replace(PARAMS, choices=True)

    ids = [params.transfer_of(b"one", choice) for choice in range(3)]

    assert ids[0] == PARAMS.transfer_id
    assert len(set(ids)) == 3
    assert all(is_transfer_id(found) for found in ids)
    assert PARAMS.transfer_of(b"one", 2) == PARAMS.transfer_id
    signed = sign(params, SECRET)
    assert verify(signed, SECRET) == params
    del signed[KEY]["choices"]
    with pytest.raises(SignatureError):
        verify(signed, SECRET)


def test_several_prompts_have_transfers_of_their_own_under_one_name() -> None:
    """Both nodes find the same id for the same prompt; that there are several is signed."""
    prefill, decode = (
        TransferParams(transfer_id="ab" * 16, role=role, peer="", several=True) for role in ("prefill", "decode")
    )

    ids = [prefill.transfer_of(b"one"), prefill.transfer_of(b"two")]

    assert ids == [decode.transfer_of(b"one"), decode.transfer_of(b"two")]
    assert len({*ids, "ab" * 16}) == 3
    assert all(is_transfer_id(found) for found in ids)
    signed = sign(prefill, SECRET)
    assert verify(signed, SECRET) == prefill
    del signed[KEY]["several"]
    with pytest.raises(TransferParamsError, match="not signed"):
        verify(signed, SECRET)
    with pytest.raises(TransferParamsError, match="malformed"):
        verify({KEY: signed[KEY] | {"several": "yes"}}, SECRET)
