import json

import msgspec
import pytest

from baton.contracts.kv_transfer import FIELD, Role, TransferParams, TransferParamsError, new_transfer_id, sign
from baton.contracts.secret import ClusterSecret
from baton.node.http.transfer_params import verified_params
from baton.node.roles import TRAITS

SECRET = ClusterSecret(b"the secret of this cluster")
PARAMS = TransferParams(transfer_id=new_transfer_id(), role="decode", peer="tcp://10.0.0.1:9100")
SIGNED = sign(PARAMS, SECRET)
FORGED = sign(PARAMS, ClusterSecret(b"the secret of another cluster"))
DECODE: tuple[Role, ...] = ("decode",)


def find(content: object, *, role: Role = "decode") -> TransferParams | None:
    """Look into a body as a client would send it."""
    roles: tuple[Role, ...] = (role,)
    return verified_params(json.dumps(content).encode(), roles, SECRET)


@pytest.mark.parametrize(
    "content",
    [
        {"prompt": "x"},
        {FIELD: None},
        {"prompt": f"what is {FIELD}?"},
        {"messages": [{"content": "\u00e9"}]},
        [],
        "text",
    ],
)
def test_a_body_without_transfer_passes(content: object) -> None:
    """No key of that name, or nothing in it; a mention in the text is no key."""
    assert find(content) is None


@pytest.mark.parametrize(
    "body", [b"", b"not json", b'{"kv_transfer_params": ', b"\xff\xfe\x00", b"\x00kv_transfer_params"]
)
def test_what_is_no_json_passes(body: bytes) -> None:
    """No server behind the gate can read parameters out of it either."""
    assert verified_params(body, DECODE, SECRET) is None


@pytest.mark.parametrize(
    "content",
    [
        {FIELD: FORGED},
        {FIELD: {"do_remote_prefill": True}},
        {FIELD: {}},
        {FIELD: []},
        {FIELD: "x"},
        {FIELD: 0},
        {FIELD: False},
        {"sampling_params": {"extra_args": {FIELD: FORGED}}},  # vLLM's token API reads them there
        {"requests": [{"prompt": "x"}, {FIELD: FORGED}]},
        [[{FIELD: FORGED}]],
    ],
)
def test_unsigned_parameters_are_refused_at_any_depth(content: object) -> None:
    """A client that could write them could make a node push KV, and the top of the body is not the only place where vLLM reads them."""
    with pytest.raises(TransferParamsError):
        find(content)


HIDDEN = json.dumps({FIELD: FORGED})


@pytest.mark.parametrize(
    "body",
    [
        *(HIDDEN.encode(encoding) for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-8-sig")),
        HIDDEN.replace("kv_", "kv\\u005f").encode(),
    ],
)
def test_encodings_and_escapes_hide_nothing(body: bytes) -> None:
    """The server's JSON parser detects them, so they are looked into as well."""
    with pytest.raises(TransferParamsError):
        verified_params(body, DECODE, SECRET)


def test_of_two_equal_keys_the_last_one_counts() -> None:
    """As in the server's parser: a good first one does not cover a bad second one."""
    good, bad = json.dumps(SIGNED), json.dumps(FORGED)
    assert verified_params(f'{{"{FIELD}": {bad}, "{FIELD}": {good}}}'.encode(), DECODE, SECRET) == PARAMS
    with pytest.raises(TransferParamsError):
        verified_params(f'{{"{FIELD}": {good}, "{FIELD}": {bad}}}'.encode(), DECODE, SECRET)


def test_parameters_for_the_other_role_are_refused() -> None:
    """A decode leg that reaches a prefill node is the proxy's mistake, or a client's replay."""
    with pytest.raises(TransferParamsError, match="decode node, and this is a prefill node"):
        find({FIELD: SIGNED}, role="prefill")


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_node_that_sends_and_receives_takes_legs_of_either_role(role: Role) -> None:
    params = msgspec.structs.replace(PARAMS, role=role)
    body = json.dumps({FIELD: sign(params, SECRET)}).encode()

    assert verified_params(body, frozenset(TRAITS), SECRET) == params


def test_two_transfers_in_one_body_are_refused() -> None:
    """One request, one transfer; the same one twice is one."""
    other = sign(TransferParams(transfer_id=new_transfer_id(), role="decode", peer=""), SECRET)
    assert find([{FIELD: SIGNED}, {FIELD: SIGNED}]) == PARAMS
    with pytest.raises(TransferParamsError, match="more than once"):
        find([{FIELD: SIGNED}, {FIELD: other}])


def test_a_body_too_deep_to_search_is_refused() -> None:
    """What cannot be looked into is not let through."""
    body = b'{"kv_transfer_params": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(TransferParamsError, match="deep"):
        verified_params(body, DECODE, SECRET)
