"""Runs one node: check, find the device, lay down the environment, hand over to vLLM's own server.

Everything up to `_hand_over` is cheap and ends in one sentence when something is wrong. Nothing here opens a ZMQ
socket or loads Mooncake, so all of it may run in a freshly forked child, and may itself be followed by a fork.
"""

import os
import runpy
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from baton.contracts.configuration.schema import BatonConfig
from baton.contracts.kv_transfer import Role
from baton.contracts.probe import Place
from baton.contracts.secret import read_secret
from baton.kv_connector.engine.mooncake_environment import check_transport
from baton.kv_connector.errors import ConnectorConfigError
from baton.model_runner import choose
from baton.node.drain import STOP_SIGNALS
from baton.node.engine_watch import EXIT_ENGINE_ENDED
from baton.node.errors import StartRefusedError
from baton.node.follower import follow
from baton.node.middleware import GateSettings, configure
from baton.node.roles import node_config, roles_of
from baton.node.startup import checks, environment, kv_cache, weights
from baton.node.startup.addresses import Addresses, resolve
from baton.node.startup.arguments import Launch, control_port, vllm_arguments
from baton.node.startup.extra_connectors import refuse_unproven
from baton.node.startup.flags import ranks_of, refuse_owned, value_of
from baton.node.startup.hosts import Hosts, hosts_of
from baton.node.startup.vllm_flags import refuse_unknown
from baton.node.versions import versions

EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130
PORT_PATIENCE_S = 10.0  # the workers of a node that was killed hold its ports until they see it
LAUNCHERS = ("vllm.entrypoints.launchers.launcher", "vllm.entrypoints.launcher")  # the second before vLLM 0.29
PORT_SEARCH = "find_process_using_port"  # in them


def run(
    role: Role,
    config: BatonConfig,
    runtime_dir: Path,
    *,
    own_flags: Sequence[str] = (),
) -> None:
    """Serve until the process is told to stop.

    `runtime_dir` is an existing folder of this node alone, for the sockets between its processes. `own_flags`, the
    command line's, are named where an unknown flag is near to one.

    Raises:
        SystemExit: with 2 after a refusal, said in one sentence on stderr; with 1 if the engine died; with 130 if
            stopped before it was ready.
    """
    try:
        found = _check(role, config, runtime_dir, own_flags)
        arguments = _prepare(role, config, runtime_dir, found)
        if found.hosts.follows:
            follow(arguments, node_config(role, config).drain_timeout_s)
        else:
            _hand_over(arguments)
            if STOP_SIGNALS.ended_unasked:
                sys.stderr.write(
                    f"{role} node: vLLM's server ended by itself: its engine has died, see the lines above\n"
                )
                raise SystemExit(EXIT_ENGINE_ENDED)
    except (StartRefusedError, ConnectorConfigError, choose.UnknownDeviceError) as exc:
        sys.stderr.write(f"{role} node: {exc}\n")
        raise SystemExit(EXIT_REFUSED) from exc
    except KeyboardInterrupt as exc:
        raise SystemExit(EXIT_INTERRUPTED) from exc


class _Found(NamedTuple):
    """What the checks have established."""

    secret_file: Path
    addresses: Addresses
    hosts: Hosts


def _check(role: Role, config: BatonConfig, runtime_dir: Path, own_flags: Sequence[str]) -> _Found:
    node = node_config(role, config)
    refuse_owned(node.vllm_args)
    refuse_unknown(node.vllm_args, own_flags)
    hosts = hosts_of(node.vllm_args)
    checks.check_model(node.model)
    secret_file = checks.check_secret(config.cluster.secret_file)
    checks.check_runtime_dir(runtime_dir)
    addresses = resolve(node)
    if not hosts.follows:
        checks.check_port(addresses.listen_host, node.port, "HTTP", PORT_PATIENCE_S)
    if "prefill" in roles_of(role, config.transfer):
        _, engines = ranks_of(node.vllm_args)
        first = control_port(node) + hosts.first_rank
        for port in range(first, first + hosts.ranks_here * engines):
            checks.check_port(addresses.listen_host, port, "control", PORT_PATIENCE_S)
    checks.check_transfer_engine()
    return _Found(secret_file, addresses, hosts)


def _prepare(role: Role, config: BatonConfig, runtime_dir: Path, found: _Found) -> list[str]:
    """Decide vLLM's arguments, then set what else vLLM reads: the environment, and the gate's settings."""
    node = node_config(role, config)
    theirs = node.vllm_args
    device = _detect_device()
    worker = choose.worker_class(device, node.model_runner)
    check_transport(config.transfer.protocol, device)
    checks.check_speculation(theirs, device)
    refuse_unproven(node.beside, theirs, device, versions().get("vllm", "none"))
    directory = weights.model_directory(node.model, value_of(theirs, "--revision"))
    model_config = weights.read_model_config(directory)
    arguments = vllm_arguments(
        Launch(
            role=role,
            node=node,
            transfer=config.transfer,
            secret_file=found.secret_file,
            runtime_dir=runtime_dir,
            addresses=found.addresses,
            device=device,
            worker_class=worker,
            kv_cache_bytes=kv_cache.default_bytes(
                model_config, value_of(theirs, "--dtype"), value_of(theirs, "--max-model-len")
            ),
            weights=weights.digest(node.model, directory, value_of(theirs, "--revision")),
        )
    )
    cores = len(os.sched_getaffinity(0))
    environment.apply(environment.environment(device, arguments, cores, os.environ))
    if device == "cpu":
        environment.apply(environment.of_preloads(runtime_dir, os.environ))
    environment.apply(environment.of_runner(device, node.model_runner, os.environ))
    environment.apply(environment.of_worker(runtime_dir, sync_audit=node.sync_audit))
    environment.apply(environment.of_step(node.step_timeout_s, os.environ))
    environment.apply(environment.of_hosts(found.hosts, found.addresses, os.environ))
    configure(
        GateSettings(
            role=role,
            roles=roles_of(role, config.transfer),
            model=node.model,
            secret=read_secret(found.secret_file),
            runtime_dir=runtime_dir,
            drain_timeout_s=node.drain_timeout_s,
            first_token_wait_s=config.transfer.first_token_wait_s,
            place=Place(host=found.addresses.data_host, protocol=config.transfer.protocol),
        )
    )
    from baton.kv_connector.vllm_compat import versions as engine_version  # imports vLLM, which reads the environment

    engine_version.check_engine(role)
    return arguments


def _detect_device() -> str:
    try:
        return choose.detect_device()
    except ImportError as exc:
        raise StartRefusedError(f"vLLM cannot be imported: {exc}") from exc


def _hand_over(arguments: list[str]) -> None:
    """Run vLLM's OpenAI server in this process; it reads `sys.argv`."""
    sys.argv = ["vllm", *arguments]
    _keep_quiet_on_the_way_out()
    try:
        from vllm.entrypoints.launchers.api_server import entry
    except ImportError as exc:
        if not (exc.name or "").startswith("vllm.entrypoints.launchers"):
            raise
        entry = None
    if entry is not None:
        entry.main()
    else:  # Before vLLM 0.29 the server is a script.
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


def _keep_quiet_on_the_way_out() -> None:
    """Spare vLLM a stumble: it names the process that has its port, which may be its own engine, just gone."""
    for name in LAUNCHERS:
        with suppress(ImportError):
            launcher = import_module(name)
            if hasattr(launcher, PORT_SEARCH):
                setattr(launcher, PORT_SEARCH, lambda _port: None)  # as if none had it
