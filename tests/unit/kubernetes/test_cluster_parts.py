"""What stands in for a cluster in the test of its pods: probes, names, volumes, the kernel's tables."""

from tests.support.kubernetes.names import Names
from tests.support.kubernetes.probes import Judgement

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
