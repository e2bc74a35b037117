import json

import msgspec
import pytest

from baton.contracts.kv_transfer import FIELD, Role, TransferParams, TransferParamsError, new_transfer_id, sign
from baton.contracts.secret import ClusterSecret
from baton.node.http.transfer_params import verified_params

SECRET = ClusterSecret(b"the secret of this cluster")
PARAMS = TransferParams(transfer_id="0" * 32, role="decode", peer="tcp://10.0.0.1:9100")
SIGNED = sign(PARAMS, SECRET)
FORGED = sign(PARAMS, ClusterSecret(b"the secret of another cluster"))
DECODE: tuple[Role, ...] = ("decode",)


UNSIGNED: list[object] = [FORGED, {"do_remote_prefill": True}, {}, [], "x", 0, False]
HIDDEN = json.dumps({FIELD: FORGED})


def find(content: object, *, role: Role = "decode") -> TransferParams | None:
    roles: tuple[Role, ...] = (role,)
    return verified_params(json.dumps(content).encode(), roles, SECRET)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "x"}',
        b'{"kv_transfer_params": null}',
        b'{"prompt": "what is kv_transfer_params?"}',  # a mention in the text is no key
        b'{"messages": [{"content": "\\u00e9"}]}',
        b"[]",
        b'"text"',
        # No server behind the gate can read parameters out of these either.
        *(b"", b"not json", b'{"kv_transfer_params": ', b"\xff\xfe\x00", b"\x00kv_transfer_params"),
    ],
)
def test_a_body_without_transfer_passes(body: bytes) -> None:
    assert verified_params(body, DECODE, SECRET) is None


@pytest.mark.parametrize(
    "body",
    [
        *(json.dumps({FIELD: value}).encode() for value in UNSIGNED),
        json.dumps({"sampling_params": {"extra_args": {FIELD: FORGED}}}).encode(),  # vLLM's token API reads them there
        json.dumps({"requests": [{"prompt": "x"}, {FIELD: FORGED}]}).encode(),
        json.dumps([[{FIELD: FORGED}]]).encode(),
        # The server's JSON parser detects encodings.
        *(HIDDEN.encode(encoding) for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-8-sig")),
        HIDDEN.replace("kv_", "kv\\u005f").encode(),
        f'{{"{FIELD}": {json.dumps(SIGNED)}, "{FIELD}": {json.dumps(FORGED)}}}'.encode(),  # of two, the last one counts
        b'{"kv_transfer_params": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",  # too deep to be looked into
    ],
    ids=lambda body: repr(body[:60]),
)
def test_unsigned_parameters_are_refused_wherever_they_are(body: bytes) -> None:
    """A client that could write them could make a node push KV, and the top of the body is not the only place where vLLM reads them."""
    with pytest.raises(TransferParamsError):
        verified_params(body, DECODE, SECRET)


def test_a_good_last_key_covers_a_bad_first_one() -> None:
    """As in the server's parser."""
    body = f'{{"{FIELD}": {json.dumps(FORGED)}, "{FIELD}": {json.dumps(SIGNED)}}}'
    assert verified_params(body.encode(), DECODE, SECRET) == PARAMS


def test_parameters_for_the_other_role_are_refused() -> None:
    """A decode leg that reaches a prefill node is the proxy's mistake, or a client's replay."""
    with pytest.raises(TransferParamsError, match="decode node, and this is a prefill node"):
        find({FIELD: SIGNED}, role="prefill")


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_node_that_sends_and_receives_takes_legs_of_either_role(role: Role) -> None:
    params = msgspec.structs.replace(PARAMS, role=role)
    body = json.dumps({FIELD: sign(params, SECRET)}).encode()

    assert verified_params(body, frozenset({"prefill", "decode"}), SECRET) == params


def test_two_transfers_in_one_body_are_refused() -> None:
    """One request, one transfer; the same one twice is one."""
    other = sign(TransferParams(transfer_id=new_transfer_id(), role="decode", peer=""), SECRET)
    assert find([{FIELD: SIGNED}, {FIELD: SIGNED}]) == PARAMS
    with pytest.raises(TransferParamsError, match="more than once"):
        find([{FIELD: SIGNED}, {FIELD: other}])
