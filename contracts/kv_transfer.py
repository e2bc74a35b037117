"""`kv_transfer_params`: what the proxy tells each node about one transfer, signed.

The proxy draws a transfer id and puts one object into the body of either leg:
`{"baton": {"v": 2, "id": …, "role": …, "peer": …, "sig": …}}`, with what differs from the defaults of `TransferParams`:
`"grids": [[tp, pp], [tp, pp]]` (P's and D's), `"start": [[id, …], …]`, and the flags of `_FLAGS` that are true.
vLLM hands it to the connector untouched. A node accepts it only with a valid signature, since anyone who may write
these parameters can make a node push KV.
"""

import hashlib
import hmac
import secrets
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeGuard, cast

import msgspec

from baton.contracts.secret import ClusterSecret

PROTOCOL_VERSION = 2
FIELD = "kv_transfer_params"  # vLLM's name for the request field
KEY = "baton"  # our object inside it
CHOICE = "baton_choice"  # beside it in vLLM's extra arguments: which choice of the answer a request is
MAX_PEER_CHARS = 8_192
MAX_GRID = 1_024  # ranks along either side of a grid
MAX_START_TOKENS = 1 << 17
MAX_START_CHOICES = 1 << 14
_PURPOSE = "kv-transfer-params"
_FLAGS = {  # field → attribute
    "several": "several",
    "choices": "choices",
    "first": "first_token",
    "relay": "relays",
    "start_sent": "start_sent",
    "kv_only": "kv_only",
}

Role = Literal["prefill", "decode"]


class TransferParamsError(ValueError):
    """The parameters are malformed, of another version, or not signed by this cluster's proxy."""

    kind = "malformed_params"  # under which it is counted


class ParamsVersionError(TransferParamsError):
    """They are of another protocol version."""

    kind = "params_version"


class SignatureError(TransferParamsError):
    """They are not signed by this cluster's proxy."""

    kind = "bad_signature"


class Grid(NamedTuple):
    """The ranks of one engine: pipeline stages, each of so many tensor-parallel ranks."""

    tp: int = 1
    pp: int = 1

    @property
    def ranks(self) -> int:
        """All of them; they are numbered stage by stage."""
        return self.tp * self.pp


class Grids(NamedTuple):
    """The engines at both ends of a transfer."""

    prefill: Grid = Grid()
    decode: Grid = Grid()


Start = tuple[tuple[int, ...], ...]  # token ids of each choice
SINGLE = Grids()  # one rank at either end


class TransferParams(msgspec.Struct, frozen=True, kw_only=True):
    """One leg of one transfer."""

    transfer_id: str  # 128 random bits, 32 lower-case hex digits
    role: Role  # the role that the receiving node plays
    # decode leg: control addresses of the prefill engine's ranks, "tcp://host:port", joined by commas; prefill leg: ""
    peer: str
    several: bool = False  # the HTTP request has several prompts, and `transfer_id` stands for all of them
    choices: bool = False  # each of several answers to one prompt has a transfer, with its own first token
    grids: Grids = SINGLE
    first_token: bool = False  # P samples the answer's first token as the client asks for it, and D starts with it
    # Prefill leg: its stream goes to the client up to the first token. The engine ends the request there whatever
    # `max_tokens` says, by an output of its own with the finish reason "abort": what came before is what one server
    # would have streamed.
    relays: bool = False
    # Tokens that the answer has, by choice; some may have none. Decode leg: the request starts with them; with `peer` ""
    # there is no transfer. Prefill leg: they follow the prompt, and all their KV but the last one's is sent with it.
    start: Start = ()
    # Decode leg: the prefill leg has `start` too, so that the transfer is of the prompt and these tokens.
    start_sent: bool = False
    kv_only: bool = False  # decode leg: its answer is thrown away; the engine ends the request if its KV does not come

    def transfer_of(self, prompt_hash: bytes, choice: int = 0) -> str:
        """Return the id of one engine request's transfer, which both nodes find.

        Equal prompts of a batch share one; the first choice of an answer has the id itself.
        """
        if self.several:
            one = prompt_hash
        elif self.choices and choice:
            one = b"choice %d" % choice
        else:
            return self.transfer_id
        return hashlib.blake2b(one, digest_size=16, key=bytes.fromhex(self.transfer_id)).hexdigest()


def new_transfer_id() -> str:
    return secrets.token_hex(16)


def is_transfer_id(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) == 32 and all(c in "0123456789abcdef" for c in value)


def sign(params: TransferParams, secret: ClusterSecret) -> dict[str, Any]:
    """Return the value for the request field `kv_transfer_params`."""
    fields: dict[str, Any] = {
        "v": PROTOCOL_VERSION,
        "id": params.transfer_id,
        "role": params.role,
        "peer": params.peer,
        "sig": _signature(params, secret.derive(_PURPOSE)),
    }
    fields |= {name: True for name, attribute in _FLAGS.items() if getattr(params, attribute)}
    if params.grids != SINGLE:
        fields["grids"] = [list(grid) for grid in params.grids]
    if params.start:
        fields["start"] = [list(ids) for ids in params.start]
    return {KEY: fields}


def verify(value: object, secret: ClusterSecret) -> TransferParams:
    """Check the shape and signature of a `kv_transfer_params` value.

    Raises `TransferParamsError` if it is not ours, of another protocol version, or its signature is wrong.
    """
    if not isinstance(value, dict) or not isinstance(value.get(KEY), dict):
        raise TransferParamsError(f"{FIELD} carries no {KEY!r} object")
    fields = cast("dict[str, object]", value[KEY])
    version = fields.get("v")
    if type(version) is not int or version != PROTOCOL_VERSION:
        named = version if version in range(1_000) else "?"  # nothing long of the sender's making in our sentence
        raise ParamsVersionError(f"{FIELD} has protocol version {named}; this node speaks {PROTOCOL_VERSION}")
    transfer_id, role, peer, sig = (fields.get(name) for name in ("id", "role", "peer", "sig"))
    if not is_transfer_id(transfer_id):
        raise TransferParamsError(f"{FIELD} has no valid transfer id")
    if role not in ("prefill", "decode") or not _is_address(peer) or not isinstance(sig, str):
        raise TransferParamsError(f"{FIELD} is malformed")
    flags = {attribute: fields.get(name, False) for name, attribute in _FLAGS.items()}
    grids, start = _grids(fields.get("grids")), _start(fields.get("start"))
    if not all(isinstance(flag, bool) for flag in flags.values()) or grids is None or start is None:
        raise TransferParamsError(f"{FIELD} is malformed")
    params = TransferParams(
        transfer_id=transfer_id, role=role, peer=peer, grids=grids, start=start, **cast("dict[str, bool]", flags)
    )
    if not _is_signed(params, sig, secret):
        raise SignatureError(f"{FIELD} is not signed by this cluster's proxy")
    return params


def _is_address(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and len(text) <= MAX_PEER_CHARS and text.isascii() and text.isprintable()


def _grids(value: object) -> Grids | None:
    if value is None:
        return SINGLE
    if not isinstance(value, list) or len(value) != 2:
        return None
    sizes = [size for grid in value if isinstance(grid, list) and len(grid) == 2 for size in grid]
    if len(sizes) != 4 or not all(type(size) is int and 0 < size <= MAX_GRID for size in sizes):
        return None
    return Grids(Grid(*sizes[:2]), Grid(*sizes[2:]))


def _start(value: object) -> Start | None:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(ids, list) for ids in value):
        return None
    tokens = [token for ids in value for token in ids]
    if not 0 < len(tokens) <= MAX_START_TOKENS or len(value) > MAX_START_CHOICES:
        return None
    if not all(type(token) is int and 0 <= token < 1 << 31 for token in tokens):
        return None
    return tuple(map(tuple, value))


def _is_signed(params: TransferParams, sig: str, secret: ClusterSecret) -> bool:
    given = sig.encode(errors="replace")  # JSON may hold half a surrogate pair, which is no text
    keys = secret.accepted(_PURPOSE)
    return any(hmac.compare_digest(_signature(params, key).encode(), given) for key in keys)


def _signature(params: TransferParams, key: bytes) -> str:
    parts = [str(PROTOCOL_VERSION), params.transfer_id, params.role, params.peer]
    if params.several:
        parts.append("several")
    if params.choices:
        parts.append("choices")
    if params.grids != SINGLE:
        parts.append(" ".join(str(size) for grid in params.grids for size in grid))
    if params.first_token:
        parts.append("first")
    if params.relays:
        parts.append("relay")
    if params.start:
        parts.append("start " + "/".join(" ".join(map(str, ids)) for ids in params.start))
    if params.start_sent:
        parts.append("start sent")
    if params.kv_only:
        parts.append("kv only")
    message = "\n".join(parts)
    signing = _keyed(key).copy()
    signing.update(message.encode())
    return signing.hexdigest()


@lru_cache(maxsize=8)
def _keyed(key: bytes) -> hmac.HMAC:
    """An HMAC that has taken its key, which costs more than a message of this length."""
    return hmac.new(key, digestmod=hashlib.sha256)
