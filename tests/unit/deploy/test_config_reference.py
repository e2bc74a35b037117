import re
from pathlib import Path

import pytest

from baton.contracts.configuration.load import HINTS, environment_name, flag_name
from baton.deploy import cli
from baton.deploy.config_reference import commands_of_flags, page
from baton.proxy.__main__ import command_line

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_page_in_the_docs_is_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    """After a change of a setting: `python -m baton.deploy.cli config reference --markdown > docs/configuration.md`.

    Without `--markdown` it is printed as a `baton.yaml`.
    """
    assert cli.main(["config", "reference", "--markdown"]) == 0
    assert capsys.readouterr().out == PAGE.read_text(encoding="utf-8") == page()
    assert cli.main(["config", "reference"]) == 0
    assert "prefill_node:" in capsys.readouterr().out


def test_every_setting_has_a_row() -> None:
    """Each by the name of its variable, with its own name, its flag where a command has one, and no cell empty."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in page().splitlines()]
    found = {name: cells for cells in rows for name in re.findall(r"`(BATON_[A-Z_]+)`", cells[0])}
    flags = commands_of_flags()

    for key in HINTS:
        cells = found[environment_name(key)]
        assert cells[0].startswith(f"`{key.partition('.')[2]}`")
        assert all(cells), key
        assert not flags[key] or cells[3].startswith(f"`{flag_name(key)}`")


def test_flags_are_spelt_as_the_table_says() -> None:
    """The proxy's parser names its flags itself; those of the others are made from the settings' names."""
    for action in command_line()._actions:
        if "." in action.dest:
            assert action.option_strings == [flag_name(action.dest)]
