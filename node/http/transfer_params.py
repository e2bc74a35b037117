"""Finding and checking `kv_transfer_params` in a request's body.

Anyone who may write these parameters can make a node push KV, so nothing of the kind reaches vLLM unsigned. vLLM reads
them at the top of most bodies, but at other depths too (`sampling_params.extra_args` of its token API), so every key
of that name counts, wherever it stands.
"""

import json
from collections.abc import Collection, Iterator

from baton.contracts.kv_transfer import FIELD, Role, TransferParams, TransferParamsError, verify
from baton.contracts.secret import ClusterSecret

_WORTH_PARSING = (
    FIELD.encode(),
    b"\\u",  # the name may be written with escapes
    b"\x00",  # or the body in UTF-16 or UTF-32, which `json.loads` accepts
)


def verified_params(body: bytes, roles: Collection[Role], secret: ClusterSecret) -> TransferParams | None:
    """Return the transfer that a request belongs to; None if it names none, or is no JSON and so none of ours.

    Raises:
        TransferParamsError: it names one that is not signed, meant for another role than this node's, or not the only
            one.
    """
    if not any(mark in body for mark in _WORTH_PARSING):
        return None
    try:
        content = json.loads(body)  # the parser that vLLM's server uses, so that both see the same object
    except ValueError:
        return None
    except RecursionError as exc:
        raise TransferParamsError("the body is nested too deeply to be searched") from exc
    found = {verify(value, secret) for value in _values(content) if value is not None}
    if len(found) > 1:
        raise TransferParamsError(f"{FIELD} stands in the body more than once")
    for params in found:
        if params.role not in roles:
            raise TransferParamsError(
                f"{FIELD} is meant for a {params.role} node, and this is a {'/'.join(roles)} node"
            )
        return params
    return None


def _values(content: object) -> Iterator[object]:
    """Yield the value of every key of that name, whatever the depth."""
    pending = [content]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if FIELD in item:
                yield item[FIELD]
            pending.extend(value for key, value in item.items() if key != FIELD)
        elif isinstance(item, list):
            pending.extend(item)
