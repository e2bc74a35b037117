"""What the fork server runs for the chaos suite."""

import time
from collections.abc import Sequence
from typing import Any


def slow_prefill_node(argv: Sequence[str], layer_s: float, has_media: bool = False) -> int:
    """A prefill node whose every layer takes `layer_s` longer, as if the model were larger.

    The delay costs no CPU. It is what makes room for faults between layers on a model that computes a chunk in 5 ms.
    """
    from baton.kv_connector.connector import BatonConnector
    from baton.prefill_node.__main__ import main
    from tests.support.media_nodes import prepare

    if has_media:
        prepare()
    save = BatonConnector.save_kv_layer

    def slow_save(self: BatonConnector, *args: Any, **kwargs: Any) -> None:
        time.sleep(layer_s)
        save(self, *args, **kwargs)

    BatonConnector.save_kv_layer = slow_save  # type: ignore[method-assign]  # engine processes are forked from this one
    return main(list(argv))
