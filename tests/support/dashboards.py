"""Reads the Grafana dashboards."""

import json
import re
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "monitoring" / "grafana" / "dashboards"
Dashboard = dict[str, Any]
_VARIABLE_QUERY: Final = re.compile(r"label_values\((.+), (\w+)\)")


def dashboards() -> dict[str, Dashboard]:
    return {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def expressions() -> list[tuple[str, str]]:
    """Return every PromQL expression of every dashboard, with where it stands; a variable's as the series it lists."""
    found = []
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            found += [(f"{name}: {panel['title']}", target["expr"]) for target in panel.get("targets", ())]
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                match = _VARIABLE_QUERY.fullmatch(variable["query"]["query"])
                assert match is not None, variable
                found.append((f"{name}: ${variable['name']}", match[1]))
    return found
