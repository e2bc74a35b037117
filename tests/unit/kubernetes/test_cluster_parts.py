"""What stands in for a cluster in the test of its pods: probes, names, volumes, the kernel's tables."""

import os
from pathlib import Path

import pytest

from tests.support.kubernetes.connections import Accepted, read
from tests.support.kubernetes.names import Names
from tests.support.kubernetes.probes import Judgement
from tests.support.kubernetes.volumes import memory_bytes, mounts, quantity_bytes

CONTAINER = {
    "ports": [{"name": "http", "containerPort": 8100}],
    "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "successThreshold": 2},
    "livenessProbe": {"httpGet": {"path": "/health", "port": "http"}, "failureThreshold": 2, "periodSeconds": 7},
    "volumeMounts": [
        {"name": "secret", "mountPath": "/run/secret", "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ],
}
TEMPLATE = {
    "spec": {
        "securityContext": {"fsGroup": os.getgid()},
        "containers": [CONTAINER],
        "volumes": [
            {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        ],
    }
}
TABLES = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1FA4 00000000:0000 0A 00000000:00000000 00:00000000 00000000 10001        0 1
   1: 032312C6:1FA4 022312C6:B1A8 01 00000000:00000000 00:00000000 00000000 10001        0 2
   2: 032312C6:C350 042312C6:2008 01 00000000:00000000 00:00000000 00000000 10001        0 3
  sl  local_address                         remote_address                        st
   0: 00000000000000000000000000000000:3A98 00000000000000000000000000000000:0000 0A
   1: 0000000000000000FFFF0000032312C6:3A98 0000000000000000FFFF0000052312C6:9C40 06
"""


def test_a_container_is_ready_after_as_many_successes_as_it_takes() -> None:
    """And stays so until it has failed three times in a row, which is Kubernetes' default."""
    ready = Judgement.of("readinessProbe", CONTAINER)
    held = []
    for succeeded in (True, False, True, True, False, False, True, False, False, False):
        ready.take(succeeded)
        held.append(ready.holds)

    assert held == [False] * 3 + [True] * 6 + [False]
    assert (ready.path, ready.port, ready.period_s, ready.timeout_s) == ("/health", 8100, 10, 1)


def test_a_container_is_alive_until_it_has_failed_often_enough() -> None:
    """As its manifest says."""
    alive = Judgement.of("livenessProbe", CONTAINER)
    held = []
    for succeeded in (False, True, False, False):
        alive.take(succeeded)
        held.append(alive.holds)

    assert held == [True, True, True, False]
    assert alive.period_s == 7


def test_names_are_as_old_as_the_cache_lets_them_be() -> None:
    """A pod that has gone is still named for a while, as CoreDNS does it."""
    pods = ["198.18.35.2"]
    kept, fresh = (Names({"decode": lambda: list(pods)}, "baton", kept_s) for kept_s in (3600.0, -1.0))
    name = "decode.baton.svc.cluster.local"
    before = [kept[name], fresh[name]]
    pods.clear()

    assert before == [["198.18.35.2"]] * 2
    assert [kept[name], fresh[name]] == [["198.18.35.2"], []]
    assert kept.get("prefill.baton.svc.cluster.local", ()) == ()


def test_a_secret_is_mounted_behind_kubelets_links(tmp_path: Path) -> None:
    """With the mode of the manifest, and read-only; a volume in memory is mounted by the container."""
    found = mounts(TEMPLATE, (), {"s": {"key": "a"}}, tmp_path)
    folder, writable = found["/run/secret"]
    file = Path(folder) / "key"

    assert set(found) == {"/run/secret", "/tmp"}
    assert (writable, found["/tmp"][1]) == (False, True)
    assert file.is_symlink()
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("a", 0o440)
    assert memory_bytes(TEMPLATE) == {"/dev/shm": 1 << 30}


@pytest.mark.parametrize(("quantity", "size"), [("512", 512), ("64Mi", 64 << 20), ("8Gi", 8 << 30)])
def test_sizes_are_read_as_kubernetes_writes_them(quantity: str, size: int) -> None:
    """Bytes, or powers of 1,024."""
    assert quantity_bytes(quantity) == size


def test_connections_that_others_opened_are_found() -> None:
    """Of both families, those just closed as well; not those that were opened from here."""
    assert read(TABLES) == {Accepted("198.18.35.2", 8100), Accepted("198.18.35.5", 15000)}
