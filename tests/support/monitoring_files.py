"""Where the alert rules are."""

from pathlib import Path
from typing import Final

MONITORING: Final = Path(__file__).parents[2] / "deploy" / "monitoring"
RULES: Final = MONITORING / "prometheus" / "rules" / "baton.yaml"
OBJECT: Final = MONITORING / "prometheus-rule.yaml"
