"""The timelines of a prefill rank's transfers: of those that are open, and of the last that have ended."""

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from baton.kv_connector.handoff.layer_times import REMEMBERED, LayerTimes
from baton.kv_connector.handoff.outgoing import ProducerTransfer
from baton.kv_connector.telemetry.timings import counted_from


class _Ended(NamedTuple):
    transfer_id: str
    about: dict[str, Any]
    scheduled_s: float
    layer_times: LayerTimes


class Timelines:
    """Written and read with the worker's lock held."""

    def __init__(self) -> None:
        self._ended: deque[_Ended] = deque(maxlen=REMEMBERED)

    def add(self, transfer: ProducerTransfer) -> None:
        """Keep what is known of a transfer that has just ended, without its blocks."""
        if transfer.layer_times is not None and "scheduled" in transfer.marks:
            about, scheduled_s = _about(transfer, is_open=False), transfer.marks["scheduled"]
            self._ended.append(_Ended(transfer.transfer_id, about, scheduled_s, transfer.layer_times))

    def find(self, transfer_id: str, is_open: Iterable[ProducerTransfer]) -> list[dict[str, Any]]:
        """Return each flow of a transfer: one, or one for each pair of ranks, whose ids begin with the transfer's."""
        ended = [
            {**each.about, **each.layer_times.snapshot(each.scheduled_s)}
            for each in self._ended
            if _belongs(each.transfer_id, transfer_id)
        ]
        under_way = [
            {**_about(each, is_open=True), **each.layer_times.snapshot(each.marks["scheduled"])}
            for each in is_open
            if _belongs(each.transfer_id, transfer_id) and each.layer_times is not None and "scheduled" in each.marks
        ]
        return ended + under_way


def _belongs(flow_id: str, transfer_id: str) -> bool:
    return flow_id.partition("/")[0] == transfer_id


def _about(transfer: ProducerTransfer, *, is_open: bool) -> dict[str, Any]:
    """What does not change any more, or not before the next question."""
    prompt = transfer.prompt
    return {
        "transfer_id": transfer.transfer_id,
        "open": is_open,
        "layers": transfer.layers,
        "tokens": prompt.tokens if prompt else 0,
        "cached_tokens": prompt.cached_tokens if prompt else 0,
        "timings_s": counted_from("scheduled", transfer.marks),
        "pushing_s": round(transfer.pushing_s, 6),
    }
