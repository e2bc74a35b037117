"""`docs/cuda.md` and `docs/npu.md`: every command of ours must parse, every configuration load, every link lead somewhere."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from baton.contracts.configuration.load import load
from baton.contracts.configuration.schema import BatonConfig
from baton.contracts.kv_transfer import Role
from baton.deploy import serve
from baton.deploy.cli import COMMANDS
from baton.kv_connector.engine.mooncake_environment import check_transport
from baton.kv_connector.errors import ConnectorConfigError
from baton.loadtest.run import build
from baton.node.command import parse, with_passthrough
from baton.node.roles import node_config
from baton.node.startup.flags import ranks_of, refuse_owned
from baton.proxy.__main__ import _overrides, command_line

ROOT = Path(__file__).resolve().parents[2]
DEVICES = {"cuda": "cuda", "npu": "npu"}  # page → device
ROLES: dict[str, Role] = {"prefill": "prefill", "decode": "decode"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(text_of(page)) if found == language]


def shell_lines(page: str) -> Iterator[list[str]]:
    """Each simple command of the page, as words, without the variables before it."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            while words and ASSIGNMENT.fullmatch(words[0]):
                words.pop(0)
            if words:
                yield words


def baton_commands() -> list[tuple[str, list[str]]]:
    return [(page, words[1:]) for page in DEVICES for words in shell_lines(page) if words[0] == "baton"]


def node_configuration(role: Role, arguments: list[str]) -> BatonConfig:
    line = parse(role, arguments)
    return with_passthrough(role, load(line.overrides, {}, None).config, line.passthrough)


def check_node(role: Role, arguments: list[str]) -> str:
    """Refuse what a node would refuse; return the transport."""
    config = node_configuration(role, arguments)
    node = node_config(role, config)
    refuse_owned(node.vllm_args)
    ranks_of(node.vllm_args)
    for flag in (word for word in node.vllm_args if word.startswith("-")):
        assert flag in vllm_flags(), f"vLLM knows no {flag}"
    assert node.model
    return config.transfer.protocol


def vllm_flags() -> set[str]:
    """Those flags of vLLM's server that the pages may use, as far as the installed version has them in its source."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("no vLLM here")
    source = Path(spec.origin).with_name("engine").joinpath("arg_utils.py").read_text(encoding="utf-8")
    return set(re.findall(r'"(--?[a-z][a-z-]*)"', source))


@pytest.mark.parametrize(
    ("page", "arguments"), baton_commands(), ids=lambda value: value if isinstance(value, str) else value[0]
)
def test_a_command_parses(page: str, arguments: list[str]) -> None:
    """Our flags are spelled right, what is left is vLLM's, and the transport is one that the device has."""
    command, *rest = arguments
    if command == "--version":
        return
    assert command in COMMANDS
    if command in ROLES:
        check_transport(check_node(ROLES[command], rest), DEVICES[page])
    elif command == "serve":
        options = serve.parse(rest)
        load(options.overrides, {}, None)
        for role in ROLES.values():
            check_transport(check_node(role, ["--model", "M", *options.node_flags]), DEVICES[page])
    elif command == "proxy":
        assert load(_overrides(command_line().parse_args(rest)), {}, None).config.proxy.decode
    elif command == "loadtest":
        assert not build.conflicts(build.parse(rest[1:]))
    else:
        assert command == "config"


@pytest.mark.parametrize("page", DEVICES)
def test_a_configuration_loads(page: str, tmp_path: Path) -> None:
    """Each YAML block is a whole `baton.yaml`, whose nodes' flags pass."""
    found = blocks(page, "yaml")
    for number, block in enumerate(found):
        file = tmp_path / f"{number}.yaml"
        file.write_text(block)
        config = load({}, {}, file).config
        check_transport(config.transfer.protocol, DEVICES[page])
        for node in (config.prefill_node, config.decode_node):
            refuse_owned(node.vllm_args)
            assert ranks_of(node.vllm_args)[0] > 1
    assert found


@pytest.mark.parametrize("page", DEVICES)
def test_both_ways_say_the_same(page: str, tmp_path: Path) -> None:
    """The commands for two machines and the configuration file give nodes of the same shape."""
    file = tmp_path / "baton.yaml"
    file.write_text(blocks(page, "yaml")[0])
    from_file = load({}, {}, file).config
    for role in ROLES.values():
        (arguments,) = [
            words for name, words in baton_commands() if name == page and words[0] == role and "--host" in words
        ]
        by_hand = node_config(role, node_configuration(role, arguments[1:]))
        file_node = node_config(role, from_file)
        assert ranks_of(by_hand.vllm_args) == ranks_of(file_node.vllm_args)
        for name in ("model", "host", "advertise_host", "port"):
            assert getattr(by_hand, name) == getattr(file_node, name)


@pytest.mark.parametrize("page", DEVICES)
def test_the_extra_and_its_wheel_are_those_of_the_package(page: str) -> None:
    """`pip install '.[…]'` names an extra that is there, and the page the version of Mooncake that it pins."""
    extras: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert ["pip", "install", f".[{page}]"] in list(shell_lines(page))
    (wheel,) = (wanted for wanted in extras[page] if wanted.startswith("mooncake"))
    name, _, version = wheel.partition("==")
    assert f"`{name}` {version}" in text_of(page)


def test_the_pages_say_what_is_refused() -> None:
    """The sentences that the pages quote are the program's."""
    with pytest.raises(ConnectorConfigError):
        check_transport("nvlink", "cuda")
    for page in DEVICES:
        assert "othing on this page has been run" in text_of(page)
    assert "no has_pending_push_work" in text_of("npu")
