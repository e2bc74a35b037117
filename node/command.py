"""The command line of a node: our flags, and every other one for vLLM."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from baton.contracts.configuration.load import ConfigError, choose_file, flag_name, load
from baton.contracts.configuration.schema import BatonConfig, NodeConfig, TransferConfig
from baton.contracts.configuration.show import meanings
from baton.contracts.kv_transfer import Role
from baton.node.roles import node_config
from baton.node.runtime_dir import owned_directory
from baton.node.server import EXIT_REFUSED, run

_SECRET = "cluster.secret_file"  # noqa: S105  # the name of a setting


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What was asked for on the command line."""

    file: Path | None  # given with --config
    overrides: dict[str, Any]  # "section.field" → text
    passthrough: tuple[str, ...]  # for vLLM


def main(role: Role, argv: Sequence[str] | None = None) -> int:
    """Run a node until it is told to stop; return the exit status."""
    line = parse(role, sys.argv[1:] if argv is None else argv)
    try:
        loaded = load(line.overrides, os.environ, choose_file(line.file))
    except ConfigError as exc:
        sys.stderr.write(f"{exc}\n")
        return EXIT_REFUSED
    config = with_passthrough(role, loaded.config, line.passthrough)
    with owned_directory(role) as runtime_dir:
        run(role, config, runtime_dir, own_flags=own_flags(role))
    return 0


def parse(role: Role, argv: Sequence[str]) -> CommandLine:
    """Split a command line into our settings and vLLM's flags."""
    parser = argparse.ArgumentParser(
        prog=f"baton {role}",
        usage=f"baton {role} --model MODEL --secret-file FILE [--port PORT] [any setting] [any flag of vLLM]",
        description=f"Serve a model as a {role} node. Any further flag is passed on to vLLM's OpenAI server.",
        allow_abbrev=False,  # a shortened flag of vLLM must not be taken for one of ours
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="baton.yaml; default: the one in this folder")
    told = meanings()
    for key in keys(role):
        meaning = told[key].replace("%", "%%")
        parser.add_argument(
            flag_name(key), dest=key, action=_Once, metavar="VALUE", default=argparse.SUPPRESS, help=meaning
        )
    known, passthrough = parser.parse_known_args(argv)
    overrides = {key: value for key, value in vars(known).items() if key != "config"}
    return CommandLine(file=known.config, overrides=overrides, passthrough=tuple(passthrough))


def keys(role: Role) -> list[str]:
    """Return the settings that have a flag, as `"section.field"`."""
    return [
        _SECRET,
        *(f"{_section(role)}.{field.name}" for field in fields(NodeConfig) if field.name != "vllm_args"),
        *(f"transfer.{field.name}" for field in fields(TransferConfig)),
    ]


def own_flags(role: Role) -> list[str]:
    return ["--config", *(flag_name(key) for key in keys(role))]


def with_passthrough(role: Role, config: BatonConfig, passthrough: tuple[str, ...]) -> BatonConfig:
    """Add the command line's flags for vLLM after those of the file, so that they win."""
    node = node_config(role, config)
    node = replace(node, vllm_args=(*node.vllm_args, *passthrough))
    return replace(config, **{_section(role): node})  # type: ignore[arg-type]  # the name is checked by `replace`


def _section(role: Role) -> str:
    return f"{role}_node"


class _Once(argparse.Action):
    """Stores a value and refuses a second one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if hasattr(namespace, self.dest):
            parser.error(f"{option_string} is given twice")
        setattr(namespace, self.dest, values)
