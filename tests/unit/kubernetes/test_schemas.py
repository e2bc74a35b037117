"""Every overlay renders, and everything in it fits the schemas; the checks themselves are tried on broken objects."""

import copy

import pytest

from tests.support.kubernetes.render import FOLDER, OVERLAYS, named, render
from tests.support.kubernetes.schemas import VERSIONS, problems


@pytest.mark.parametrize("version", VERSIONS)
def test_an_overlay_renders_and_fits_the_schemas(overlay: str, version: str) -> None:
    """Kubernetes' own of the oldest and the newest version, strictly, and those of the CRDs."""
    objects = render(overlay)

    assert len(objects) > 10
    assert [problem for each in objects for problem in problems(each, version)] == []


def test_every_folder_with_an_overlay_is_rendered() -> None:
    assert sorted(OVERLAYS) == sorted(path.name for path in (FOLDER / "overlays").iterdir())


@pytest.mark.parametrize(
    ("overlay", "kind", "name", "place"),
    [
        ("cpu", "StatefulSet", "decode", "spec.template.spec.containers.0"),
        ("cuda", "ServiceMonitor", "baton", "spec.endpoints.0"),
        ("cuda", "PrometheusRule", "baton", "spec.groups.0.rules.0"),
        ("cuda", "HTTPRoute", "baton", "spec.rules.0.matches.0.path"),
        ("multi-host", "LeaderWorkerSet", "decode-group", "spec.leaderWorkerTemplate"),
        ("multi-host", "LeaderWorkerSet", "decode-group", "spec.leaderWorkerTemplate.workerTemplate.spec.containers.0"),
    ],
)
def test_a_field_that_is_not_known_does_not_fit(overlay: str, kind: str, name: str, place: str) -> None:
    """A schema that lets everything pass would go unnoticed."""
    broken = found = copy.deepcopy(named(render(overlay), kind, name))
    for step in place.split("."):
        found = found[int(step) if step.isdecimal() else step]  # type: ignore[index]  # a list there
    found["misspelt"] = "x"

    assert all(problems(broken, version) for version in VERSIONS)
