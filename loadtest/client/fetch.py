"""Small things that a server says: its models, its metrics."""

from collections.abc import Mapping
from typing import Final

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.loadtest.client.exchange import error_words
from baton.loadtest.client.http import Address, Client, WireError
from baton.loadtest.errors import RunError

TIMEOUT_S: Final = 10.0


class _Whole:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    def on_head(self, status: int, headers: dict[str, str]) -> None:  # noqa: ARG002  # `Sink`'s signature
        self.status = status

    def on_body(self, data: bytes, now_s: float) -> None:  # noqa: ARG002  # likewise
        self.body += data


class _Model(msgspec.Struct):
    id: str


class _Versions(msgspec.Struct):
    version: str
    baton: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]


async def fetch(
    address: Address, path: str, headers: Mapping[str, str], timeout_s: float = TIMEOUT_S, *, any_status: bool = False
) -> bytes:
    """Return what a server answers to GET. Raises `RunError`: it is not there, or answers another status than 200."""
    client, whole = Client(address, headers, timeout_s), _Whole()
    where = f"{'https' if address.tls else 'http'}://{address.authority}{address.prefix}{path}"
    try:
        await client.ask("GET", path, b"", whole)
    except TimeoutError as exc:
        raise RunError(f"no answer from {where} in {timeout_s:g} s") from exc
    except (OSError, WireError) as exc:
        raise RunError(f"no server at {where}: {exc}") from exc
    finally:
        client.close()
    if whole.status != 200 and not any_status:
        raise RunError(f"{where} answered {whole.status}: {error_words(whole.body)}")
    return whole.body


async def server_version(address: Address, headers: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> str:
    """Return what the server says of itself at `/version`, as vLLM and Baton's proxy do; "" if it does not say."""
    try:
        body = await fetch(address, "/version", headers, timeout_s)
        said = msgspec.json.decode(body, type=_Versions)
    except (RunError, *DECODE_ERRORS):
        return ""
    return f"vLLM {said.version}" + (f", Baton {said.baton}" if said.baton else "")


async def first_model(address: Address, headers: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> str:
    """Return the first model that a server offers. Raises `RunError`: it offers none, or is no OpenAI server."""
    body = await fetch(address, "/v1/models", headers, timeout_s)
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except DECODE_ERRORS as exc:
        raise RunError(f"/v1/models of {address.authority} is no list of models: {exc}") from exc
    if not models:
        raise RunError(f"{address.authority} offers no model; name one with --model")
    return models[0].id
