"""What the fork server runs for the tests."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FLIP_FILE = "FLIP_FILE"  # environment: while this file exists, the next push damages one byte, and removes it


def plain_vllm(argv: Sequence[str]) -> None:
    """Serve with vLLM alone: the reference that Baton must equal."""
    from node import environment

    environment.apply(environment.environment("cpu", list(argv), len(os.sched_getaffinity(0)), os.environ))
    sys.argv = ["vllm", *argv]
    from vllm.entrypoints.launchers.api_server import entry

    entry.main()


def flipping_prefill_node(argv: Sequence[str]) -> None:
    """A prefill node whose transfer engine can be told to damage a byte of what it has delivered."""
    from kv_connector.engine import mooncake
    from prefill_node.__main__ import main
    from tests.support.flipping import FlippingFactory

    real, order = mooncake.MooncakeFactory, Path(os.environ[FLIP_FILE])

    def flip() -> bool:
        try:
            order.unlink()
        except FileNotFoundError:
            return False
        return True

    def make(**settings: Any) -> FlippingFactory:
        return FlippingFactory(real(**settings), flip)

    mooncake.MooncakeFactory = make  # type: ignore[assignment,misc]  # in this process and those that it forks
    main(argv)
