import json
import random
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from baton.contracts.kv_transfer import (
    _FLAGS,
    KEY,
    MAX_GRID,
    MAX_PEER_CHARS,
    MAX_START_CHOICES,
    MAX_START_TOKENS,
    Grid,
    Grids,
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


TWO_BY_TWO = Grids(prefill=Grid(tp=2, pp=2), decode=Grid(tp=1, pp=1))


def changed(params: TransferParams = PARAMS, **fields: Any) -> dict[str, Any]:
    return {KEY: sign(params, SECRET)[KEY] | fields}


@pytest.mark.parametrize(
    "params",
    [
        TransferParams(transfer_id=new_transfer_id(), role="prefill", peer=""),
        PARAMS,
        replace(PARAMS, several=True),
        replace(PARAMS, choices=True),
        replace(PARAMS, grids=TWO_BY_TWO),
        replace(PARAMS, first_token=True, relays=True),
        replace(PARAMS, start=((), (5, 7), ()), start_sent=True),
        replace(PARAMS, start=((5, 7),), start_sent=True, kv_only=True),
        replace(PARAMS, start=((0, (1 << 31) - 1), *[()] * (MAX_START_CHOICES - 1))),
        replace(PARAMS, start=((7,) * MAX_START_TOKENS,)),
        replace(PARAMS, peer="x" * MAX_PEER_CHARS, grids=Grids(Grid(tp=MAX_GRID), Grid(pp=MAX_GRID))),
    ],
)
def test_what_is_signed_can_be_verified(params: TransferParams) -> None:
    assert verify(json.loads(json.dumps(sign(params, SECRET))), SECRET) == params


@pytest.mark.parametrize(
    ("params", "name", "value"),
    [
        (PARAMS, "id", "cd" * 16),
        (PARAMS, "role", "prefill"),
        (PARAMS, "peer", "tcp://evil:1"),
        (PARAMS, "sig", "0" * 64),
        (PARAMS, "sig", "é"),
        *((PARAMS, flag, True) for flag in _FLAGS),  # one that is added has to be signed
        (PARAMS, "start", [[7]]),
        (replace(PARAMS, relays=True), "relay", False),
        (replace(PARAMS, start=((4, 5),)), "start", [[4, 5, 7]]),
        (replace(PARAMS, start=((4, 5),)), "start", [[4], [5]]),
        (replace(PARAMS, start=((4, 5),)), "start", [[], [4, 5]]),
        (replace(PARAMS, grids=TWO_BY_TWO), "grids", [[2, 1], [1, 1]]),
        (replace(PARAMS, several=True), "several", False),
        (replace(PARAMS, choices=True), "choices", False),
        (replace(PARAMS, kv_only=True), "kv_only", False),
    ],
)
def test_a_changed_field_breaks_the_signature(params: TransferParams, name: str, value: Any) -> None:
    """A client cannot point a node at another peer, role, transfer or rank, or have it begin or end an answer elsewhere."""
    with pytest.raises(SignatureError, match="not signed"):
        verify(changed(params, **{name: value}), SECRET)


NOT_OURS: list[object] = [None, "text", [], {}, {KEY: None}, {KEY: "text"}, {"do_remote_decode": True}]
NOT_A_START = [
    *([], [[]], "7", [7], [[True]], [[-1]], [[1 << 31]], [[0.5]], {"0": [7]}, [[7], {"7": 7}], [[7], "7"]),
    *([[7]] + [[]] * MAX_START_CHOICES, [[7] * MAX_START_TOKENS, [7]]),
]
NOT_GRIDS = ["2x1", [], [[1, 1]], [[1, 1], [1]], [[0, 1], [1, 1]], [[1, 1], [1, 1.0]], [[1, 1], [1, 5_000]], [1, 2]]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *((value, "carries no 'baton' object") for value in NOT_OURS),
        *((changed(v=version), "this node speaks 2") for version in (None, 0, 1, 3, "2")),
        *(
            (changed(id=name), "transfer id")
            for name in (None, 5, "", "AB" * 16, "ab" * 15, "zz" * 16, "ab" * 16 + "\n")
        ),
        *((changed(role=role), "malformed") for role in ("both", None)),
        *((changed(peer=peer), "malformed") for peer in (None, 5)),
        *((changed(**fields), "malformed") for fields in ({"sig": None}, {"several": "yes"})),
        *((changed(start=value), "malformed") for value in NOT_A_START),
        *((changed(grids=value), "malformed") for value in NOT_GRIDS),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_malformed_is_refused_and_named(value: object, words: str) -> None:
    """Before the signature is computed, and before anything is counted in it."""
    with pytest.raises(TransferParamsError, match=words):
        verify(value, SECRET)


def test_single_ranks_are_signed_as_earlier_versions_sign() -> None:
    """A proxy of this version serves nodes that have never heard of grids, and the other way round."""
    assert "grids" not in sign(PARAMS, SECRET)[KEY]


def test_fields_cannot_be_shifted_into_each_other() -> None:
    """The signature covers where one field ends and the next begins."""
    with pytest.raises(TransferParamsError):
        verify(changed(id="ab" * 15, role="ab\ndecode"), SECRET)


def test_transfer_ids_are_random() -> None:
    assert len({new_transfer_id() for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("proxy", "node", "accepted"),
    [((A,), (A, B), True), ((A, B), (B, A), True), ((B, A), (A, B), True), ((A, B), (B,), False), ((A,), (B,), False)],
)
def test_parameters_pass_between_neighbouring_steps_of_a_rotation(
    proxy: tuple[bytes, ...], node: tuple[bytes, ...], accepted: bool
) -> None:
    """Processes take the new secret one by one: a node accepts what either of its secrets signed, and nothing else."""
    signed = sign(PARAMS, ClusterSecret(*proxy))
    if accepted:
        assert verify(signed, ClusterSecret(*node)) == PARAMS
    else:
        with pytest.raises(SignatureError):
            verify(signed, ClusterSecret(*node))


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
    try:
        params = verify(value, SECRET)
    except TransferParamsError as exc:
        return exc.kind
    assert params == PARAMS
    return "accepted"


def test_several_answers_and_prompts_have_transfers_of_their_own() -> None:
    """The first answer's has the name that the proxy knows; both nodes find the same id for the same prompt."""
    answers = [replace(PARAMS, choices=True).transfer_of(b"one", choice) for choice in range(3)]
    prefill, decode = (replace(PARAMS, role=role, several=True) for role in ("prefill", "decode"))
    prompts = [prefill.transfer_of(b"one"), prefill.transfer_of(b"two")]

    assert answers[0] == PARAMS.transfer_id == PARAMS.transfer_of(b"one", 2)
    assert prompts == [decode.transfer_of(b"one"), decode.transfer_of(b"two")]
    assert len({*answers, *prompts}) == 5
    assert all(is_transfer_id(found) for found in answers + prompts)
