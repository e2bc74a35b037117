"""What the fork server runs for the tests."""

import os
import sys
from collections.abc import Sequence


def plain_vllm(argv: Sequence[str]) -> None:
    """Serve with vLLM alone: the reference that Baton must equal."""
    from node import environment

    environment.apply(environment.environment("cpu", list(argv), len(os.sched_getaffinity(0)), os.environ))
    sys.argv = ["vllm", *argv]
    from vllm.entrypoints.launchers.api_server import entry

    entry.main()
