"""The alert rules: checked and tried by promtool, and what they point to is there."""

import re
from pathlib import Path
from textwrap import indent
from typing import Any, Final

import pytest
import yaml

from tests.support.monitoring_files import MONITORING, OBJECT, RULES
from tests.support.promtool import complaints

ROOT: Final = Path(__file__).parents[3]
TESTS: Final = MONITORING / "prometheus" / "tests" / "baton.yaml"


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _anchors(file: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_promtool_takes_the_rules() -> None:
    """Syntax, and the templates of annotations."""
    assert complaints("check", "rules", RULES) == ""


def test_alerts_fire_when_they_should_and_not_otherwise() -> None:
    """Two series each, one that must set it off and one that must not."""
    assert complaints("test", "rules", TESTS) == ""


def test_every_alert_is_tried_both_ways() -> None:
    """An alert without a test is found here; series of namespace `quiet` must not set it off."""
    outcomes: dict[str, set[bool]] = {}
    for case in yaml.safe_load(TESTS.read_text())["tests"]:
        for tried in case["alert_rule_test"]:
            found = outcomes.setdefault(tried["alertname"], set())
            found.add(bool(tried["exp_alerts"]))
            if 'namespace="quiet"' in str(case["input_series"]):
                found.add(False)

    assert outcomes == {rule["alert"]: {True, False} for rule in _rules()}


@pytest.mark.parametrize("rule", _rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_where_to_read_on(rule: dict[str, Any]) -> None:
    """The runbook is a heading of a page in docs; docs/monitoring.md has it in its table."""
    page, _, anchor = rule["annotations"]["runbook"].partition("#")

    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    assert anchor in _anchors(ROOT / page)
    assert f"| `{rule['alert']}` |" in (ROOT / "docs" / "monitoring.md").read_text()


def test_the_operators_object_says_the_same() -> None:
    """If not, its first lines say how it is made."""
    head, _, rules = OBJECT.read_text().partition("spec:\n")

    assert rules == indent(RULES.read_text(), "  ")
    assert yaml.safe_load(OBJECT.read_text())["spec"] == yaml.safe_load(RULES.read_text())
    assert {"kind: PrometheusRule", "  name: baton"} <= set(head.splitlines())
