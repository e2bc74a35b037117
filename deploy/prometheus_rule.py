"""`python -m baton.deploy.prometheus_rule`: writes the alert rules once more, as what the Prometheus Operator reads.

Kustomize cannot put one file's content into another, and `promtool` reads no Kubernetes objects: so there are two
files, and a test that they say the same.
"""

import sys
from pathlib import Path
from textwrap import indent
from typing import Final

MONITORING: Final = Path(__file__).resolve().parent / "monitoring"
RULES: Final = MONITORING / "prometheus" / "rules" / "baton.yaml"
OBJECT: Final = MONITORING / "prometheus-rule.yaml"
_HEAD: Final = """\
# Made from prometheus/rules/baton.yaml by `python -m baton.deploy.prometheus_rule`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: baton
spec:
"""


def as_object(rules: str) -> str:
    return _HEAD + indent(rules, "  ")


def main() -> int:
    OBJECT.write_text(as_object(RULES.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
