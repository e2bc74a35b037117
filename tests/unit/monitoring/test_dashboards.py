"""The Grafana dashboards: whole, readable, and with expressions that Prometheus understands. No Grafana is asked."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.dashboards import Dashboard, dashboards, expressions
from tests.support.promtool import complaints

WIDTH: Final = 24  # of Grafana's grid
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
every_dashboard = pytest.mark.parametrize("dashboard", dashboards().values(), ids=list(dashboards()))


def _cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    return {
        (x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
    }


def _resolved(expression: str) -> str:
    """Put something in the place of Grafana's variables."""
    return re.sub(r"\$\w+", "x", expression.replace("$__rate_interval", "5m"))


def test_promtool_understands_every_expression(tmp_path: Path) -> None:
    """As the expressions of so many rules."""
    rules = tmp_path / "rules.yaml"
    made = [
        {"record": f"panel_{number}", "expr": _resolved(expression), "labels": {"place": where}}
        for number, (where, expression) in enumerate(expressions())
    ]
    rules.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": made}]}))

    assert len(made) > 60
    assert complaints("check", "rules", rules) == ""


@every_dashboard
def test_panels_have_ids_of_their_own_and_do_not_overlap(dashboard: Dashboard) -> None:
    panels = dashboard["panels"]
    ids = [panel["id"] for panel in panels]
    cells = [cell for panel in panels for cell in _cells(panel)]

    assert len(ids) == len(set(ids))
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < WIDTH


@every_dashboard
def test_every_query_asks_the_chosen_source(dashboard: Dashboard) -> None:
    """Nothing of the Grafana that it was made with is left in it."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            continue
        references = [target["refId"] for target in panel["targets"]]
        assert panel["title"]
        assert panel["datasource"] == SOURCE
        assert all(target["datasource"] == SOURCE for target in panel["targets"])
        assert len(references) == len(set(references))
    assert dashboard["templating"]["list"][0]["type"] == "datasource"


@every_dashboard
def test_every_variable_is_there_and_used(dashboard: Dashboard) -> None:
    """A query with an unknown variable shows nothing."""
    text = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ()))
    used = set(re.findall(r"\$(\w+)", text)) - {"__rate_interval"}

    assert used == {each["name"] for each in dashboard["templating"]["list"]} - {"datasource"}


def test_dashboards_can_be_told_apart() -> None:
    """Grafana takes the uid for the dashboard."""
    uids = [dashboard["uid"] for dashboard in dashboards().values()]

    assert len(uids) == len(set(uids)) == 2


def test_the_cluster_gets_every_dashboard() -> None:
    """The list in the kustomization names all files."""
    folder = Path(__file__).parents[3] / "deploy" / "monitoring"
    (maps,) = yaml.safe_load((folder / "kustomization.yaml").read_text())["configMapGenerator"]

    assert {Path(each).name for each in maps["files"]} == set(dashboards())
