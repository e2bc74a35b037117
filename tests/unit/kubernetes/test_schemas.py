"""Every overlay renders, and everything in it fits the schemas; the checks themselves are tried on broken objects."""

import copy
from collections.abc import Callable

import pytest

from tests.support.kubernetes.render import FOLDER, OVERLAYS, Object, named, render
from tests.support.kubernetes.schemas import VERSIONS, problems

KINDS_OF_CRDS = ("ServiceMonitor", "PrometheusRule", "HTTPRoute", "LeaderWorkerSet")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_renders_and_fits_the_schemas(overlay: str, version: str) -> None:
    """Kubernetes' own of the oldest and the newest version, strictly, and those of the CRDs."""
    objects = render(overlay)

    assert len(objects) > 10
    assert [problem for each in objects for problem in problems(each, version)] == []


def test_every_folder_with_an_overlay_is_rendered() -> None:
    """An overlay that is added is tested too."""
    assert sorted(OVERLAYS) == sorted(path.name for path in (FOLDER / "overlays").iterdir())


def test_each_kind_of_a_crd_is_in_some_overlay() -> None:
    """So that its schema is used at all."""
    kinds = {each["kind"] for overlay in OVERLAYS for each in render(overlay)}

    assert set(KINDS_OF_CRDS) <= kinds


def _misspell_probe(found: Object) -> None:
    container = found["spec"]["template"]["spec"]["containers"][0]
    container["readynessProbe"] = container.pop("readinessProbe")


def _word_as_replicas(found: Object) -> None:
    found["spec"]["replicas"] = "two"


def _unknown_endpoint_field(found: Object) -> None:
    found["spec"]["endpoints"][0]["every"] = "15s"


def _unknown_rule_field(found: Object) -> None:
    found["spec"]["groups"][0]["rules"][0]["condition"] = "1 > 0"


def _wrong_match(found: Object) -> None:
    found["spec"]["rules"][0]["matches"][0]["path"]["type"] = "Glob"


def _unknown_group_field(found: Object) -> None:
    found["spec"]["leaderWorkerTemplate"]["members"] = 2


def _misspell_in_group(found: Object) -> None:
    template = found["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    template["spec"]["containers"][0]["imagge"] = "x"


@pytest.mark.parametrize(
    ("overlay", "kind", "name", "breaks"),
    [
        ("cpu", "Deployment", "proxy", _misspell_probe),
        ("cpu", "StatefulSet", "decode", _word_as_replicas),
        ("cuda", "ServiceMonitor", "baton", _unknown_endpoint_field),
        ("cuda", "PrometheusRule", "baton", _unknown_rule_field),
        ("cuda", "HTTPRoute", "baton", _wrong_match),
        ("multi-host", "LeaderWorkerSet", "decode-group", _unknown_group_field),
        ("multi-host", "LeaderWorkerSet", "decode-group", _misspell_in_group),
    ],
)
def test_a_broken_object_does_not_fit(overlay: str, kind: str, name: str, breaks: Callable[[Object], None]) -> None:
    """A schema that lets everything pass would go unnoticed."""
    broken = copy.deepcopy(named(render(overlay), kind, name))
    breaks(broken)

    assert all(problems(broken, version) for version in VERSIONS)
