"""Prometheus' own configuration, in compose and in the docs: promtool takes it, with the rules that it names."""

import re
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.compose import FOLDER, compose_files
from tests.support.monitoring_files import RULES
from tests.support.promtool import complaints, said

ROOT: Final = Path(__file__).parents[3]
COMPOSED: Final = FOLDER / "prometheus.yml"
PAGE: Final = ROOT / "docs" / "monitoring.md"


def _service() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(compose_files()[0].read_text())["services"]["prometheus"]
    return found


def _places() -> dict[str, Path]:
    """Path in the container → what compose.yaml puts there."""
    bound = (each.split(":") for each in _service()["volumes"] if each.startswith("."))
    return {target: (FOLDER / source).resolve() for source, target, _ in bound}


def _as_mounted(folder: Path, text: str) -> Path:
    """Write a configuration whose paths are those of this machine."""
    for target, source in _places().items():
        text = text.replace(target, str(source))
    file = folder / "prometheus.yml"
    file.write_text(text)
    return file


def test_the_service_reads_the_file_that_is_checked_here() -> None:
    """What its command names is mounted from deploy/compose, and the rules from deploy/monitoring."""
    flags = dict(word.partition("=")[::2] for word in _service()["command"])

    assert _places()[flags["--config.file"]] == COMPOSED
    assert RULES.parent in _places().values()


def test_promtool_takes_composes_configuration_with_its_rules(tmp_path: Path) -> None:
    """With paths as they are mounted: the rules are found, and are checked with it."""
    file = _as_mounted(tmp_path, COMPOSED.read_text())

    assert complaints("check", "config", COMPOSED) == ""
    assert complaints("check", "config", file) == ""
    assert str(RULES) in said("check", "config", file)


def test_promtool_takes_the_configuration_of_the_docs(tmp_path: Path) -> None:
    """What docs/monitoring.md says to write by hand, beside the folder of the rules."""
    [example] = re.findall(r"```yaml\n(rule_files:.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "rules").symlink_to(RULES.parent)
    file = tmp_path / "prometheus.yml"
    file.write_text(example)

    assert complaints("check", "config", file) == ""
    assert "rules/baton.yaml" in said("check", "config", file)
