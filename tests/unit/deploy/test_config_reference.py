import re
from pathlib import Path

import pytest

from baton.contracts.configuration.load import HINTS, environment_name, flag_name
from baton.contracts.configuration.schema import BatonConfig
from baton.contracts.configuration.show import meanings
from baton.deploy import cli
from baton.deploy.config_reference import commands_of_flags, page, value_of
from baton.proxy.__main__ import command_line

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def rows() -> dict[str, list[str]]:
    """The cells behind each environment variable of the page."""
    found: dict[str, list[str]] = {}
    for line in page().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        found |= dict.fromkeys(re.findall(r"`(BATON_[A-Z_]+)`", cells[0]), cells)
    return found


def test_the_page_in_the_docs_is_what_the_code_says() -> None:
    """After a change of a setting: `python -m baton.deploy.cli config reference --markdown > docs/configuration.md`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_setting_says_what_it_means() -> None:
    """A setting without a comment in the schema would have an empty cell."""
    assert [key for key in HINTS if key not in meanings()] == []


def test_every_setting_has_a_row() -> None:
    """Each by the name of its variable, with its own name, its flag where a command has one, and no cell empty."""
    found = rows()
    flags = commands_of_flags()

    for key in HINTS:
        cells = found[environment_name(key)]
        assert cells[0].startswith(f"`{key.partition('.')[2]}`")
        assert all(cells), key
        assert not flags[key] or cells[3].startswith(f"`{flag_name(key)}`")


def test_a_flag_is_named_with_the_commands_that_have_it() -> None:
    """The launcher, the proxy and the nodes do not have the same ones."""
    flags = commands_of_flags()

    assert flags["cluster.secret_file"] == ["serve", "proxy", "prefill", "decode"]
    assert flags["proxy.port"] == ["serve", "proxy"]
    assert flags["transfer.protocol"] == ["prefill", "decode"]
    assert (flags["prefill_node.control_port"], flags["decode_node.control_port"]) == (["prefill"], [])
    assert flags["proxy.retry_share"] == []


def test_flags_are_spelt_as_the_table_says() -> None:
    """The proxy's parser names its flags itself; those of the others are made from the settings' names."""
    for action in command_line()._actions:
        if "." in action.dest:
            assert action.option_strings == [flag_name(action.dest)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("proxy.port", "port, between 0 and 65535"),
        ("proxy.probe_timeout_s", "seconds, above 0"),
        ("proxy.max_body_bytes", "bytes, at least 1"),
        ("transfer.quarantine_max_share", "share, between 0 and 1"),
        ("proxy.workers", "whole number, at least 1"),
        ("proxy.resume", "`off`, `all`"),
        ("proxy.prefill", "list of texts"),
        ("prefill_node.vllm_args", "list of words"),
        ("prefill_node.beside", "list of mappings"),
        ("cluster.secret_file", "path"),
        ("serve.pin_cores", "true or false"),
        ("transfer.kv_verify", "off, full or sample:N (every N-th transfer)"),
    ],
)
def test_a_value_is_told_with_unit_and_bounds(key: str, value: str) -> None:
    """A reader needs no source to write a right one."""
    assert value_of(key.rpartition(".")[2], HINTS[key]) == value


def test_defaults_are_those_of_the_code() -> None:
    """The two kinds of node share a table, and where they differ both are shown; sizes also in large units."""
    found = rows()

    assert found["BATON_PREFILL_NODE_PORT"][2] == found["BATON_DECODE_NODE_PORT"][2] == "`8100`; `8200`"
    assert found["BATON_PROXY_MAX_BODY_BYTES"][2] == f"`{BatonConfig().proxy.max_body_bytes}` (64 MiB)"
    assert found["BATON_SERVE_PIN_CORES"][2] == "`true`"
    assert found["BATON_PROXY_PREFILL"][2] == "–"


def test_the_command_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """`baton config reference --markdown`; without it, the same as a `baton.yaml`."""
    assert cli.main(["config", "reference", "--markdown"]) == 0

    assert capsys.readouterr().out == page()
