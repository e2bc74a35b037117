"""One snapshot of the two sides that an engine has which both sends and receives KV. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from baton.kv_connector.telemetry.refusals import added_up

REVERSE: Final = "reverse"  # what the side that is not the node's role says, but for what is joined
_JOINED: Final = ("transfers", "sessions", "open_transfers", "control_address")  # a side that dials has no address: ""
_OF_THE_ENGINE: Final = ("block_size", "first_tokens")


def join(snapshots: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the node's own side's snapshot, which is the first, with the other one's, if there is one."""
    own, *others = snapshots
    if not others:
        return dict(own)
    (other,) = others
    joined = {name: own[name] + other[name] for name in _JOINED if name in own}
    known = {*joined, *_OF_THE_ENGINE, "refused"}
    return {
        **own,
        **joined,
        "refused": added_up(own["refused"], other["refused"]),
        REVERSE: {name: value for name, value in other.items() if name not in known},
    }
