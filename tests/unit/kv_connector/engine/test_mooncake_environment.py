"""Mooncake's settings: what we add, what we leave and what we refuse."""

import pytest

from baton.kv_connector.engine.mooncake_environment import check_transport, prepare_environment
from baton.kv_connector.errors import ConnectorConfigError

DEFAULTS = {"MC_FORCE_TCP": "1", "MC_TCP_BIND_ADDRESS": "10.0.0.7", "MC_TCP_PROGRESS_TIMEOUT_SEC": "2"}


@pytest.mark.parametrize(
    ("protocol", "given", "expected"),
    [
        ("tcp", {}, DEFAULTS | {"MC_DISABLE_METACACHE": None}),
        ("tcp", {"MC_TCP_LANES_PER_PEER": "4", "MC_TCP_BIND_ADDRESS": "0.0.0.0"}, {}),
        ("tcp", {"MC_TCP_PROTO": "2"}, {}),  # it is what we need anyway
        ("rdma", {}, {"MC_FORCE_TCP": None}),
    ],
)
def test_defaults_complete_an_operators_settings(
    protocol: str, given: dict[str, str], expected: dict[str, str | None]
) -> None:
    """TCP is forced and bound to the data address; a stopped peer is noticed in seconds. What has been set on purpose stays."""
    environ = {**given}

    prepare_environment("10.0.0.7", protocol, environ)

    wanted = expected | given
    assert {name: environ.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("name", ["MC_TCP_PROTO", "MC_USE_TENT", "MC_USE_TEV1"])
def test_settings_that_break_the_rules_are_refused(name: str) -> None:
    """TCP protocol 1 acknowledges before the bytes are applied; the sentence names the variable."""
    with pytest.raises(ConnectorConfigError, match=f"{name}=1 must not be set"):
        prepare_environment("10.0.0.7", "tcp", {name: "1"})


def test_a_contradiction_is_refused() -> None:
    """RDMA in the configuration and TCP in the environment cannot both be meant."""
    with pytest.raises(ConnectorConfigError, match="MC_FORCE_TCP"):
        prepare_environment("10.0.0.7", "rdma", {"MC_FORCE_TCP": "1"})


@pytest.mark.parametrize(
    ("protocol", "device"), [("tcp", "cpu"), ("rdma", "cpu"), ("tcp", "cuda"), ("rdma", "cuda"), ("ascend", "npu")]
)
def test_a_transport_that_carries_the_device_passes(protocol: str, device: str) -> None:
    check_transport(protocol, device)


@pytest.mark.parametrize(
    ("protocol", "device", "words"),
    [
        ("tcp", "npu", "use 'ascend'"),
        ("rdma", "npu", "use 'ascend'"),
        ("ascend", "cuda", "use tcp or rdma"),
        ("ascend", "cpu", "use tcp or rdma"),
        ("nvlink", "cuda", "late writes could not be kept out"),
        ("nvlink", "npu", "late writes could not be kept out"),
    ],
)
def test_a_transport_that_does_not_is_refused(protocol: str, device: str, words: str) -> None:
    """Mooncake itself would read device memory as if it were the host's, or take another transport without a word."""
    with pytest.raises(ConnectorConfigError, match=words):
        check_transport(protocol, device)
