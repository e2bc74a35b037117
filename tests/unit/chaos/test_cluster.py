from dataclasses import replace

from baton.contracts.configuration.schema import TransferConfig
from tests.chaos.cluster import Shape


def test_nodes_are_told_only_what_differs_from_the_defaults() -> None:
    """So that a run has the defaults of the day unless it says otherwise."""
    assert not any(flag.startswith("--peer") for flag in Shape().flags)

    flags = Shape(transfer=replace(TransferConfig(), peer_timeout_s=2.0, receive_engines=4)).flags
    assert flags[flags.index("--peer-timeout-s") + 1] == "2.0"
    assert flags[flags.index("--receive-engines") + 1] == "4"
