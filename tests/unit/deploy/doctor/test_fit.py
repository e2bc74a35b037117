import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from baton.contracts.node_info import Fingerprint
from baton.contracts.probe import UNLIMITED, RdmaDevice
from baton.deploy.doctor.catalogue import Finding
from baton.deploy.doctor.fit import (
    DIFFERENCES,
    MIN_OPEN_FILES,
    Known,
    diagnose_machine,
    diagnose_node,
    diagnose_pair,
    diagnose_versions,
)
from tests.unit.deploy.doctor.known import FINGERPRINT, REGION, VERSIONS, decode, machine, prefill

CARD = RdmaDevice(name="mlx5_0", active=True)
UNPLUGGED = RdmaDevice(name="mlx5_0", active=False)
OLD: dict[str, Any] = {"versions": {**VERSIONS, "protocol": "0"}}


def codes(findings: Iterable[Finding]) -> list[str]:
    return [finding.code for finding in findings]


@pytest.mark.parametrize("field", Fingerprint.__struct_fields__)
def test_a_difference_is_named_with_both_values(field: str) -> None:
    """A field that is added to the fingerprint needs a name."""
    other = 96 if field == "block_size_tokens" else "other"
    theirs = decode(fingerprint=msgspec.structs.replace(FINGERPRINT, **{field: other}))

    (finding,) = diagnose_pair(prefill(), theirs)

    assert finding.code == DIFFERENCES[field]
    assert f"{getattr(FINGERPRINT, field)!r} on the prefill node, {other!r} on the decode node" in finding.what


@pytest.mark.parametrize(("change", "words"), [({"block_bytes": 512}, "1024"), ({"stride_bytes": 1}, "")])
def test_regions_that_differ_alone_are_a_layout(change: dict[str, int], words: str) -> None:
    """What the connector would refuse although the fingerprints are the same; and numbers that describe no buffer."""
    theirs = decode(regions=[msgspec.structs.replace(REGION, **change)])

    (finding,) = diagnose_pair(prefill(), theirs)

    assert finding.code == "layout"
    assert words in finding.what


@pytest.mark.parametrize(
    ("of_prefill", "of_decode", "found"),
    [
        (OLD, {}, ["protocol"]),
        ({}, OLD, ["protocol"]),
        (OLD, OLD, ["protocol"]),  # then it is this doctor, or the proxy, that is of another version
        ({"versions": {}}, {}, []),  # it is taken to speak ours, as the proxy takes it
        ({"control_addresses": ["tcp://10.0.0.1:9100,tcp://127.0.0.1:9100"]}, {}, ["loopback-advertised"]),
        ({"control_addresses": ["tcp://10.0.0.1:9100,tcp://localhost:9100"]}, {}, ["loopback-advertised"]),
        ({"control_addresses": ["tcp://10.0.0.1:9100,tcp://[::1]:9100"]}, {}, ["loopback-advertised"]),
        ({}, {"engines": ("127.0.0.1:15001",)}, ["loopback-advertised"]),  # the prefill node would push to itself
    ],
)
def test_another_protocol_or_a_loopback_address_is_named(
    of_prefill: dict[str, Any], of_decode: dict[str, Any], found: list[str]
) -> None:
    """On one side or on both; of several ranks' addresses one is enough."""
    assert codes(diagnose_pair(prefill(**of_prefill), decode(**of_decode))) == found


def test_loopback_on_one_machine_is_well() -> None:
    """`baton serve` does nothing else."""
    here = machine(name="same")
    one = dataclasses.replace(prefill(control_addresses=["tcp://127.0.0.1:9100"]), machine=here)
    other = dataclasses.replace(decode(engines=("127.0.0.1:15001",)), machine=here)

    assert codes(diagnose_pair(one, other)) == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"role": "decode"}, ["wrong-role"]),
        ({"role": "decode", "state": "starting"}, ["wrong-role"]),
        ({"state": "starting"}, ["not-ready"]),
        ({"state": "failed"}, ["not-ready"]),
        ({"state": "silent"}, ["silent"]),
        ({"state": "draining"}, ["draining"]),
        ({"control_addresses": []}, ["not-ready"]),
    ],
)
def test_role_and_state_are_judged_as_the_proxy_does(changes: dict[str, Any], found: list[str]) -> None:
    assert codes(diagnose_node(prefill(**changes))) == found


def test_a_node_that_said_nothing_has_no_further_findings() -> None:
    """One that cannot try transfers is of an older version."""
    silent = Known(url="http://10.0.0.3:8100", role="prefill")
    assert codes(diagnose_node(dataclasses.replace(prefill(), machine=None))) == ["no-probe"]

    assert codes(diagnose_node(silent)) == []
    assert codes(diagnose_pair(silent, decode())) == []
    assert codes(diagnose_versions([silent, decode()])) == []


@pytest.mark.parametrize("component", ["baton", "vllm", "mooncake"])
def test_different_releases_are_named_with_the_odd_node(component: str) -> None:
    odd = decode(url="http://odd:1", versions={**VERSIONS, component: "0.0.9"})

    (finding,) = diagnose_versions([prefill(), decode(), odd])

    assert (finding.code, finding.where) == ("versions", "http://odd:1")
    assert f"{component} 0.0.9 on http://odd:1" in finding.what


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"open_files": MIN_OPEN_FILES}, []),
        ({"open_files": MIN_OPEN_FILES - 1}, ["open-files"]),
        ({"open_files": UNLIMITED}, []),
        ({"locked_bytes": 65_536}, []),
        ({"protocol": "rdma", "rdma_devices": [CARD]}, []),
        ({"protocol": "rdma"}, ["rdma-device"]),
        ({"protocol": "rdma", "rdma_devices": [UNPLUGGED]}, ["rdma-device"]),
        ({"protocol": "rdma", "rdma_devices": [UNPLUGGED, CARD]}, []),
    ],
)
def test_a_machine_is_judged_by_its_limits_and_cards(changes: dict[str, object], found: list[str]) -> None:
    """Pinned memory and cards count where the transport is RDMA."""
    assert codes(diagnose_machine(machine(**changes), "here")) == found


@pytest.mark.parametrize(("kv_bytes", "found"), [(65_536, []), (65_537, ["locked-memory"]), (None, ["locked-memory"])])
def test_as_much_memory_must_be_pinned_as_the_cache_has(kv_bytes: int | None, found: list[str]) -> None:
    """Where that is not known yet, any limit is too low."""
    limited = machine(protocol="rdma", rdma_devices=[CARD], locked_bytes=65_536)

    assert codes(diagnose_machine(limited, "here", kv_bytes)) == found
