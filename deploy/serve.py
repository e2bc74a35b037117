"""`baton serve`: from flags to a running stack on this machine, and the words around it."""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path

from baton.contracts.configuration.load import ConfigError, Loaded, choose_file, flag_name, load
from baton.contracts.configuration.schema import BatonConfig, NodeConfig
from baton.contracts.configuration.show import meanings
from baton.contracts.kv_transfer import Role
from baton.contracts.probe import MIB
from baton.contracts.secret import SecretError, read_secret
from baton.deploy import secret_command
from baton.deploy.environment import VISIBLE_DEVICES, Device, installed_device, visible_devices, zygote_environment
from baton.deploy.launcher import Launcher, Settings, StackFailedError
from baton.deploy.memory import available_bytes, needed_bytes, weights_bytes
from baton.deploy.stack import Stack, Surroundings, clashes, model_of, plan, served_model
from baton.deploy.welcome import FirstRequest, trusted_ca, welcome
from baton.node.command import own_flags
from baton.node.errors import NodeError, StartRefusedError
from baton.node.runtime_dir import owned_directory
from baton.node.startup.checks import check_model, check_port
from baton.node.startup.flags import ranks_of, value_of
from baton.node.startup.hosts import hosts_of
from baton.node.startup.kv_cache import default_bytes
from baton.node.startup.vllm_flags import refuse_unknown, spelled
from baton.node.startup.weights import read_model_config

EXIT_FAILED = 1
EXIT_REFUSED = 2
KEYS = ("cluster.secret_file", "proxy.host", "proxy.port", "proxy.workers")  # and all of section `serve`
MODEL_KEYS = ("prefill_node.model", "decode_node.model")


class RefusedError(Exception):
    """The stack cannot be started as asked; nothing has been started."""


def main(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C or SIGTERM; return 0 then, 1 if the stack failed, 2 if it was refused."""
    options = parse(argv)
    try:
        file = choose_file(options.file)
        loaded = load(options.overrides, os.environ, file)
        with owned_directory("serve") as runtime_dir:
            return _serve(loaded, file, options, runtime_dir)
    except (ConfigError, SecretError, NodeError, RefusedError) as exc:
        print(f"baton serve: {exc}", file=sys.stderr)
        return EXIT_REFUSED


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Split a command line into settings (`overrides`: "section.field" → text) and flags for the nodes (`node_flags`)."""
    parser = argparse.ArgumentParser(
        prog="baton serve",
        description="Run prefill nodes, decode nodes and the proxy on this machine. "
        "Any further flag goes to every node, and from there to vLLM.",
        allow_abbrev=False,  # a shortened flag of vLLM must not be taken for one of ours
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--config", dest="file", type=Path, default=None, metavar="FILE", help="default: baton.yaml, if there is one"
    )
    parser.add_argument("--model", metavar="MODEL", help="path or hub id; default: the embedded model")
    parser.add_argument("--log-dir", type=Path, default=None, metavar="DIR", help="keep the full logs there")
    show = "show all log lines"
    parser.add_argument("--verbose", dest="everything", action="store_true", default=False, help=show)
    told = meanings()
    for key in keys():
        parser.add_argument(flag_name(key), dest=key, metavar="VALUE", help=told[key].replace("%", "%%"))
    options, node_flags = parser.parse_known_args(argv)
    options.overrides = {key: value for key, value in vars(options).items() if "." in key}
    if "model" in options:
        options.overrides |= dict.fromkeys(MODEL_KEYS, options.model)
    options.node_flags = tuple(node_flags)
    return options


def keys() -> tuple[str, ...]:
    return (*KEYS, *(f"serve.{name}" for name in BatonConfig().serve.__dataclass_fields__))


def given_or_made(given: Path | None, made: Path) -> Path:
    if given is not None:
        return given.resolve()
    secret_command.make(made)
    return made


def _serve(loaded: Loaded, file: Path | None, options: argparse.Namespace, runtime_dir: Path) -> int:
    config, device = loaded.config, installed_device()
    _refuse_unknown_flags(config, options)
    for model in {model_of(config, "prefill"), model_of(config, "decode")}:
        check_model(model)
    for node in (config.prefill_node, config.decode_node):
        if hosts_of((*node.vllm_args, *options.node_flags)).count > 1:
            raise RefusedError(
                "only this machine's processes are started: nodes of --nnodes hosts start them on each host yourself"
            )
    if config.cluster.secret_file is not None:
        read_secret(config.cluster.secret_file)
    token_file = given_or_made(config.proxy.admin_token_file, runtime_dir / "admin.token")
    pinned = config.serve.pin_cores and device == "cpu"
    around = Surroundings(
        file=file.resolve() if file else None,
        secret_file=given_or_made(config.cluster.secret_file, runtime_dir / "secret"),
        admin_token_file=token_file,
        node_flags=options.node_flags,
        cores=tuple(sorted(os.sched_getaffinity(0))) if pinned else (),
    )
    stack = plan(config, around)
    if problems := [
        *clashes(stack),
        *taken(stack),
        *(_memory_problem(config, options, stack) if device == "cpu" else ()),
    ]:
        raise RefusedError("\n".join(problems))
    log_dir = options.log_dir or Path(tempfile.mkdtemp(prefix="baton-logs-"))
    log_dir.mkdir(parents=True, exist_ok=True)
    settings = _settings(config, options, stack, device=device, runtime_dir=runtime_dir, log_dir=log_dir)

    def announce() -> None:
        first = FirstRequest(
            url=stack.proxy.url,
            model=served_model(config, options.node_flags),
            token_file=token_file,
            needs_key=config.proxy.api_keys_file is not None,
            needs_certificate=config.proxy.tls_client_ca_file is not None,
            ca_file=trusted_ca(stack.proxy.url, config.proxy.tls_cert_file),
        )
        _say(welcome(first))

    return _run(stack, settings, announce, keep_logs=options.log_dir is not None)


def _refuse_unknown_flags(config: BatonConfig, options: argparse.Namespace) -> None:
    """Refuse a flag that neither the launcher nor a node nor vLLM knows, before vLLM is imported for half a minute."""
    of_nodes = {*own_flags("prefill"), *own_flags("decode")}
    passed_on = [flag for flag in options.node_flags if spelled(flag) not in of_nodes]
    ours = [flag_name(key) for key in keys()]
    refuse_unknown([*config.prefill_node.vllm_args, *config.decode_node.vllm_args, *passed_on], [*ours, *of_nodes])


def _memory_problem(config: BatonConfig, options: argparse.Namespace, stack: Stack) -> Iterator[str]:
    roles: tuple[tuple[Role, int, NodeConfig], ...] = (
        ("prefill", config.serve.prefill, config.prefill_node),
        ("decode", config.serve.decode, config.decode_node),
    )
    nodes = []
    for role, count, node in roles:
        model, flags = model_of(config, role), (*node.vllm_args, *options.node_flags)
        nodes.append((count, _kv_cache_bytes(model, flags), weights_bytes(model)))
    needed, available = needed_bytes(nodes), available_bytes()
    if available is not None and needed > available:
        yield (
            f"{len(stack.nodes)} nodes need about {needed // MIB:,} MiB of memory with their KV caches, and "
            f"{available // MIB:,} MiB are free for this process: start fewer (--prefill, --decode), or give each a smaller "
            "cache (--kv-cache-memory-bytes)"
        )


def _kv_cache_bytes(model: str, flags: Sequence[str]) -> int:
    given = value_of(flags, "--kv-cache-memory-bytes")
    if given and given.isdecimal():
        return int(given)
    config = read_model_config(Path(model) if Path(model).is_dir() else None)  # a hub id is not asked for here
    return default_bytes(config, value_of(flags, "--dtype"), value_of(flags, "--max-model-len"))


def _settings(
    config: BatonConfig, options: argparse.Namespace, stack: Stack, *, device: Device, runtime_dir: Path, log_dir: Path
) -> Settings:
    args = (*config.prefill_node.vllm_args, *config.decode_node.vllm_args, *options.node_flags)
    offline = all(Path(model_of(config, role)).exists() for role in ("prefill", "decode"))
    visible = os.environ.get(VISIBLE_DEVICES.get(device, ""))
    return Settings(
        runtime_dir=runtime_dir,
        log_dir=log_dir,
        start_timeout_s=config.serve.start_timeout_s,
        stop_timeout_s=config.serve.stop_timeout_s,
        fork=device == "cpu",
        zygote_environ=zygote_environment(os.environ, offline=offline, vllm_args=args),
        node_environ=visible_devices(device, ranks_of_nodes(config, options, stack), visible),
        everything=options.everything,
        restart_nodes=config.serve.on_node_exit == "restart",
    )


def ranks_of_nodes(config: BatonConfig, options: argparse.Namespace, stack: Stack) -> dict[str, int]:
    sizes = {
        f"baton.{role}_node": prod(ranks_of((*node.vllm_args, *options.node_flags)))
        for role, node in (("prefill", config.prefill_node), ("decode", config.decode_node))
    }
    return {node.name: sizes[node.module] for node in stack.nodes}


def _run(stack: Stack, settings: Settings, announce: Callable[[], None], *, keep_logs: bool) -> int:
    try:
        Launcher(stack, settings, _say).run(announce)
    except StackFailedError as exc:
        print(f"baton serve: {exc}\nAll else is stopped. Full logs: {settings.log_dir}", file=sys.stderr)
        return EXIT_FAILED
    if not keep_logs:
        shutil.rmtree(settings.log_dir, ignore_errors=True)
    _say("stopped")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def taken(stack: Stack) -> Iterator[str]:
    """Say which ports are not free, before anything starts, with the flag to change."""
    for member in stack.members:
        for listener in member.listeners:
            try:
                check_port(listener.host, listener.port, member.name)
            except StartRefusedError as exc:
                yield f"{exc}; choose another with {listener.flag}"
