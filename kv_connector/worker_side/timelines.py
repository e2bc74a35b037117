"""The timelines of a prefill rank's transfers: of those that are open, and of the last that have ended."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from baton.kv_connector.handoff.layer_times import REMEMBERED, LayerTimes
from baton.kv_connector.handoff.outgoing import ProducerTransfer
from baton.kv_connector.layout.tp_mapping import transfer_id_of_flow
from baton.kv_connector.telemetry.timings import counted_from


class _Known(NamedTuple):
    """What is known of a transfer, without its blocks."""

    transfer_id: str
    about: dict[str, Any]  # what does not change any more, or not before the next question
    scheduled_s: float
    layer_times: LayerTimes


class Timelines:
    """Written and read with the worker's lock held."""

    def __init__(self) -> None:
        self._ended: deque[_Known] = deque(maxlen=REMEMBERED)

    def add(self, transfer: ProducerTransfer) -> None:
        """Keep what is known of a transfer that has just ended."""
        self._ended.extend(_known([transfer], is_open=False))

    def find(self, transfer_id: str, is_open: Iterable[ProducerTransfer]) -> list[dict[str, Any]]:
        """Return each flow of a transfer: one, or one for each pair of ranks, whose ids begin with the transfer's."""
        ended = (each for each in self._ended if transfer_id_of_flow(each.transfer_id) == transfer_id)
        flows = (each for each in is_open if transfer_id_of_flow(each.transfer_id) == transfer_id)
        under_way = _known(flows, is_open=True)
        return [{**each.about, **each.layer_times.snapshot(each.scheduled_s)} for each in (*ended, *under_way)]


def _known(transfers: Iterable[ProducerTransfer], *, is_open: bool) -> Iterator[_Known]:
    for transfer in transfers:
        if transfer.layer_times is None or "scheduled" not in transfer.marks:
            continue
        prompt = transfer.prompt
        about = {
            "transfer_id": transfer.transfer_id,
            "open": is_open,
            "layers": transfer.layers,
            "tokens": prompt.tokens if prompt else 0,
            "cached_tokens": prompt.cached_tokens if prompt else 0,
            "timings_s": counted_from("scheduled", transfer.marks),
            "pushing_s": round(transfer.pushing_s, 6),
        }
        yield _Known(transfer.transfer_id, about, transfer.marks["scheduled"], transfer.layer_times)
