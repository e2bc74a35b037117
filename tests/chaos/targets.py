"""What the fork server runs for the chaos suite."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def slow_prefill_node(argv: Sequence[str], layer_s: float) -> int:
    """A prefill node whose every layer takes `layer_s` longer, as if the model were larger.

    The delay costs no CPU. It is what makes room for faults between layers on a model that computes a chunk in 5 ms.
    """
    from baton.kv_connector.connector import BatonConnector
    from baton.prefill_node.__main__ import main

    save = BatonConnector.save_kv_layer

    def slow_save(self: BatonConnector, *args: Any, **kwargs: Any) -> None:
        time.sleep(layer_s)
        save(self, *args, **kwargs)

    BatonConnector.save_kv_layer = slow_save  # type: ignore[method-assign]  # engine processes are forked from this one
    return main(list(argv))


def timed_decode_node(argv: Sequence[str], events: str) -> int:
    """A decode node that writes down when it makes and destroys receiving engines, by the monotonic clock."""
    from baton.decode_node.__main__ import main
    from baton.kv_connector.engine.mooncake import MooncakeFactory, MooncakeReceiver

    path = Path(events)
    MooncakeReceiver.close = _timed("fence", MooncakeReceiver.close, path)  # type: ignore[method-assign]
    MooncakeFactory.receiver = _timed("make", MooncakeFactory.receiver, path)  # type: ignore[method-assign]
    return main(list(argv))


def _timed(kind: str, call: Callable[..., Any], path: Path) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        begun_s = time.monotonic()
        try:
            return call(*args, **kwargs)
        finally:
            event = {"kind": kind, "begun_s": begun_s, "ended_s": time.monotonic()}
            with path.open("a") as file:
                file.write(json.dumps(event) + "\n")

    return timed
