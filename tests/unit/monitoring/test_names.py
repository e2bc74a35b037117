"""Every series that a dashboard, an alert or an autoscaler asks for is one that the code counts."""

import re
from pathlib import Path

import pytest
import yaml

from tests.support.dashboards import expressions
from tests.support.kubernetes.render import named, render
from tests.support.metric_names import problems, series
from tests.support.monitoring_files import RULES

ROOT = Path(__file__).parents[3]
ADAPTER = ROOT / "deploy" / "monitoring" / "prometheus-adapter" / "rules.yaml"


def alerts() -> list[tuple[str, str]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


@pytest.mark.parametrize(("where", "expression"), [*alerts(), *expressions()])
def test_alerts_and_panels_ask_for_what_there_is(where: str, expression: str) -> None:
    """Series, labels, and the values that a label can have; variables too. An alert on anything else never fires."""
    assert problems(expression) == [], where


def test_the_autoscaler_scales_by_what_the_adapter_serves() -> None:
    rules = yaml.safe_load(ADAPTER.read_text())["rules"]
    served = {rule["name"]["as"] for rule in rules}
    metrics = named(render("cuda"), "HorizontalPodAutoscaler", "proxy")["spec"]["metrics"]
    asked = {each["pods"]["metric"]["name"] for each in metrics if each["type"] == "Pods"}

    assert asked == served
    assert [problem for rule in rules for problem in problems(rule["seriesQuery"])] == []


@pytest.mark.parametrize(
    "expression",
    [
        "rate(baton_requests[5m])",
        'baton_nodes{status="ready"}',
        'baton_nodes{state="healthy"}',
        'baton_refused_total{kind=~"bad_token|bad_tokens"}',
        "sum by (model) (baton_requests_in_flight)",
        "vllm:kv_cache_usage_percent",
        "baton_time_to_first_token_seconds",
    ],
)
def test_what_there_is_not_is_found(expression: str) -> None:
    """The check itself, on a wrong series, label or value."""
    assert problems(expression)


def test_series_in_the_documentation_are_the_same() -> None:
    """`docs/metrics.md` and the code name the same ones, as far as they are always there."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    ends = "_bucket", "_sum", "_count"
    rows = re.findall(r"^\| (`baton_\w+`(?:, `baton_\w+`)*) \|", text, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"\w+", row)}
    optional = {"baton_trace_spans_total", "baton_access_log_dropped_total"}
    counted = {re.sub(r"(_bucket|_sum|_count)$", "", name) if name.endswith(ends) else name for name in series()}

    assert documented - optional == counted
