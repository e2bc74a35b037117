"""Which processes `baton serve` runs, and how each is started: decided from the configuration alone.

Pure, so that every rule is tested without a process. `launcher.py` carries the decision out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from baton.contracts.configuration.schema import BatonConfig, NodeConfig
from baton.contracts.kv_transfer import Role
from baton.deploy.embedded_model import WEIGHTS
from baton.deploy.own_url import own_url
from baton.node.roles import node_config, roles_of
from baton.node.startup.arguments import control_port
from baton.node.startup.flags import given, ranks_of, value_of

EMBEDDED_NAME = "baton-embedded"  # what clients call the embedded model
SERVED_NAME_FLAG = "--served-model-name"
PREFILL_PORTS_AFTER = 100  # the port of the proxy
DECODE_PORTS_AFTER = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A port that a process is going to bind."""

    host: str
    port: int
    flag: str  # what moves it elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process of the stack."""

    name: str  # "prefill-0"
    module: str  # run as `python -m module argv…`, or forked into `module.__main__:main(argv)`
    argv: tuple[str, ...]
    listeners: tuple[Listener, ...]  # the first one answers `ready_path`
    ready_path: str  # empty: it is ready when its port accepts connections
    is_encrypted: bool = False
    cpus: tuple[int, ...] = ()  # cores that it is pinned to; empty for any

    @property
    def url(self) -> str:
        return own_url(self.listeners[0].host, self.listeners[0].port, is_encrypted=self.is_encrypted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """All processes of one `baton serve`."""

    proxy: Member
    nodes: tuple[Member, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        return (self.proxy, *self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the plan depends on besides the configuration."""

    file: Path | None  # the configuration file, which every process reads again
    secret_file: Path
    admin_token_file: Path | None = None  # of the proxy; None: as the configuration says
    node_flags: tuple[str, ...] = ()  # given to every node: its own flags or vLLM's
    cores: tuple[int, ...] = ()  # cores to share out among the nodes; empty: pin nothing


def plan(config: BatonConfig, around: Surroundings) -> Stack:
    serve = config.serve
    prefill_cores, decode_cores = split_cores(around.cores, serve.prefill)
    prefill = tuple(_nodes("prefill", config, around, share_cores(prefill_cores, serve.prefill)))
    decode = tuple(_nodes("decode", config, around, share_cores(decode_cores, serve.decode)))
    return Stack(proxy=_proxy(config, around, prefill, decode), nodes=prefill + decode)


def model_of(config: BatonConfig, role: Role) -> str:
    """Return the model that nodes of a role serve: their own, that of the other role, or the embedded one."""
    own, other = config.prefill_node.model, config.decode_node.model
    if role == "decode":
        own, other = other, own
    return own or other or str(WEIGHTS)


def split_cores(cores: Sequence[int], prefill_nodes: int) -> tuple[Sequence[int], Sequence[int]]:
    """Give prefill and decode nodes half of the cores each; nothing is pinned on a single core."""
    if len(cores) < 2:
        return (), ()
    half = len(cores) // 2 if prefill_nodes else 0
    return cores[:half], cores[half:]


def share_cores(cores: Sequence[int], nodes: int) -> list[tuple[int, ...]]:
    """Deal cores out to nodes in runs of equal length; where there are fewer cores than nodes, they share."""
    if not cores:
        return [()] * nodes
    each = len(cores) // nodes if nodes else 0
    if each == 0:
        return [(cores[index % len(cores)],) for index in range(nodes)]
    return [tuple(cores[index * each : (index + 1) * each]) for index in range(nodes)]


def clashes(stack: Stack) -> list[str]:
    owner: dict[int, str] = {}
    found = []
    for member in stack.members:
        for listener in member.listeners:
            first = owner.setdefault(listener.port, member.name)
            if first != member.name:
                found.append(
                    f"{first} and {member.name} would both listen on port {listener.port}: see {listener.flag}"
                )
    return found


def _proxy(config: BatonConfig, around: Surroundings, prefill: Sequence[Member], decode: Sequence[Member]) -> Member:
    listener = Listener(host=config.proxy.host, port=config.proxy.port, flag="--port")
    return Member(
        name="proxy",
        module="baton.proxy",
        argv=(
            *_common(around),
            *("--host", listener.host),
            *("--port", str(listener.port)),
            *("--workers", str(config.proxy.workers)),
            *(("--admin-token-file", str(around.admin_token_file)) if around.admin_token_file else ()),
            *("--prefill", *(node.url for node in prefill)),
            *("--decode", *(node.url for node in decode)),
        ),
        listeners=(listener,),
        ready_path="" if config.proxy.tls_client_ca_file else "/ready",  # we have no certificate to show
        is_encrypted=config.proxy.tls_cert_file is not None,
    )


def _nodes(role: Role, config: BatonConfig, around: Surroundings, cpus: Sequence[tuple[int, ...]]) -> Iterator[Member]:
    node = node_config(role, config)
    base_port = base_port_of(role, config)
    model = model_of(config, role)
    for index, cores in enumerate(cpus):
        ranks, engines = ranks_of((*node.vllm_args, *around.node_flags))
        listeners = list(_listeners(role, config, base_port, index, ranks * engines))
        control = ("--control-port", str(listeners[1].port)) if len(listeners) > 1 else ()
        yield Member(
            name=f"{role}-{index}",
            module=f"baton.{role}_node",
            argv=(
                *_common(around),
                *("--model", model),
                *("--host", node.host),
                *("--port", str(listeners[0].port)),
                *control,
                *_served_name(model, (*node.vllm_args, *around.node_flags)),
                *around.node_flags,
            ),
            listeners=tuple(listeners),
            ready_path="/health",
            cpus=cores,
        )


def base_port_of(role: Role, config: BatonConfig) -> int:
    """Return the first node's port. Unless it is given it follows the proxy's, so that two stacks differ in one flag."""
    if role == "prefill":
        return config.serve.prefill_base_port or config.proxy.port + PREFILL_PORTS_AFTER
    return config.serve.decode_base_port or config.proxy.port + DECODE_PORTS_AFTER


def _listeners(role: Role, config: BatonConfig, base_port: int, index: int, ranks: int) -> Iterator[Listener]:
    node = node_config(role, config)
    yield Listener(host=node.host, port=base_port + index, flag=f"--{role}-base-port")
    if "prefill" in roles_of(role, config.transfer):
        first = control_port(NodeConfig(port=base_port, control_port=node.control_port)) + index * ranks
        flag = f"{role}_node.control_port" if node.control_port else f"--{role}-base-port"
        for rank in range(ranks):
            yield Listener(host=node.host, port=first + rank, flag=flag)


def _common(around: Surroundings) -> tuple[str, ...]:
    config = ("--config", str(around.file)) if around.file else ()
    return (*config, "--secret-file", str(around.secret_file))


def served_model(config: BatonConfig, node_flags: Sequence[str]) -> str:
    model = model_of(config, "decode")
    named = value_of((*config.decode_node.vllm_args, *node_flags), SERVED_NAME_FLAG)
    return named or (EMBEDDED_NAME if model == str(WEIGHTS) else model)


def _served_name(model: str, theirs: Sequence[str]) -> tuple[str, ...]:
    if model == str(WEIGHTS) and not given(theirs, SERVED_NAME_FLAG):
        return (SERVED_NAME_FLAG, EMBEDDED_NAME)
    return ()
