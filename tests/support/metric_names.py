"""Which series there are, as the code that counts them says; and which ones an expression in PromQL asks for."""

import importlib.util
import logging
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from prometheus_client import CollectorRegistry

from baton.kv_connector.metrics import DECODE_OUTCOMES, PREFILL_OUTCOMES, VERIFIED, families
from baton.kv_connector.telemetry.refusals import Refusals, Refused
from baton.node.http.metrics import ConnectorMetrics
from baton.proxy.admin import node_metrics
from baton.proxy.admin.worker_group import _crew_metrics
from baton.proxy.auth.middleware import AccessMetrics
from baton.proxy.errors import Refusal
from baton.proxy.nodes.node import State
from baton.proxy.nodes.registry import ROLES
from baton.proxy.planning.retry_policy import RetryDenial
from baton.proxy.telemetry.metrics import Metrics

ADDED: Final = {"namespace", "instance", "pod", "job", "le"}  # labels that Prometheus or a histogram brings
VALUES: Final[dict[str, dict[str, set[str]]]] = {  # series → label → what it may be
    "baton_transfers_total": {"outcome": {*PREFILL_OUTCOMES, *DECODE_OUTCOMES, "recomputed"}},
    "baton_verified_transfers_total": {"result": set(VERIFIED)},
    "baton_refused_total": {"kind": {each.value for each in Refused}},
    "baton_nodes": {"role": set(ROLES), "state": {each.value for each in State}},
    "baton_node_state": {"role": set(ROLES), "state": {each.value for each in State}},
    "baton_retries_denied_total": {"reason": {each.value for each in RetryDenial}},
    "baton_refusals_total": {"reason": {each.value for each in Refusal}},
}
_SUFFIXES: Final = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
_SERIES: Final = re.compile(r"(?<![\w:])((?:baton_|vllm:)\w+)\s*(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_GROUPED: Final = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_VLLM: Final = re.compile(r'name="(vllm:\w+)"')


@cache
def series() -> dict[str, frozenset[str]]:
    """Return every series of Baton's, with its labels."""
    metrics = Metrics()
    metrics.watch_gate(SimpleNamespace(inside=0, waiting=0))  # type: ignore[arg-type]  # all that it asks for
    AccessMetrics(metrics.registry)
    node = ConnectorMetrics("decode", None, Refusals(logging.getLogger(__name__)), CollectorRegistry())  # type: ignore[arg-type]  # not asked
    found = [
        *metrics.registry._collector_to_names,
        *node_metrics.states(()),
        node_metrics.openings(()),
        *node_metrics.times(()),
        *_crew_metrics(SimpleNamespace(starts=1)),  # type: ignore[arg-type]
        *families("prefill", {}, {}),
        *node.describe(),
    ]
    made: dict[str, frozenset[str]] = {}
    for each in found:
        for name, labels in _names(each):
            made[name] = made.get(name, frozenset()) | labels
    return made


@cache
def vllm_names() -> frozenset[str]:
    """Return the names that vLLM gives its metrics, without what Prometheus' client adds."""
    vllm = importlib.util.find_spec("vllm")
    assert vllm is not None
    assert vllm.origin is not None
    source = Path(vllm.origin).parent / "v1" / "metrics" / "loggers.py"
    return frozenset(_VLLM.findall(source.read_text()))


def problems(expression: str) -> list[str]:
    """Say which series, labels and values of labels an expression asks for that there are not."""
    found, known = [], set(ADDED)
    for name, selector in _SERIES.findall(expression):
        if name.startswith("vllm:"):
            if not any(name.removesuffix(end) in vllm_names() for end in ("", *_SUFFIXES["counter"])):
                found.append(f"vLLM has no series {name}")
            continue
        if name not in series():
            found.append(f"there is no series {name}")
            continue
        known |= series()[name]
        found += _wrong_matchers(name, selector)
    labels = {label.strip() for group in _GROUPED.findall(expression) for label in group.split(",")}
    return [*found, *(f"no series of it has the label {label}" for label in sorted(labels - known - {""}))]


def _wrong_matchers(name: str, selector: str) -> Iterator[str]:
    for label, value in _MATCHER.findall(selector or ""):
        if label not in series()[name] | ADDED:
            yield f"{name} has no label {label}"
        allowed = VALUES.get(name, {}).get(label)
        if allowed is not None and "$" not in value:
            yield from (f"{name} never has {label}={each}" for each in value.split("|") if each not in allowed)


def _names(metric: Any) -> Iterable[tuple[str, frozenset[str]]]:
    """Of a family, or of a metric of the client's."""
    name = getattr(metric, "name", None) or metric._name
    kind = getattr(metric, "type", None) or metric._type
    labels = frozenset(metric._labelnames)
    return [(f"{name}{suffix}", labels) for suffix in _SUFFIXES[kind]]
