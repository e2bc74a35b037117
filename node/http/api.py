"""The node API: what a node says about itself and its transfers, for the proxy and for people."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

import msgspec

from baton.contracts.http import INTEGRITY_PATH, NODE_PATH, TIMELINE_PATH, TRACE_PATH, TRANSFERS_PATH
from baton.contracts.kv_transfer import Role, is_transfer_id
from baton.contracts.node_info import Adapter, Fingerprint, NodeInfo, NodeLoad, NodeState, RegionInfo, to_plain
from baton.kv_connector.telemetry.both_sides import REVERSE
from baton.kv_connector.telemetry.refusals import Refusals, added_up
from baton.kv_connector.trace import Event, trace_events
from baton.node.connector.connector_channel import ConnectorClient, Snapshots
from baton.node.errors import ConnectorSilentError, NoAnswerError
from baton.node.http.asgi import Receive, Scope, Send, send_error, send_json
from baton.node.versions import versions

# What, beside the engine, decides how vLLM's API server streams a token: equal on both nodes, or the decode node
# streams all of them.
_OF_STREAMS: Final = (
    "served_model_name",
    "chat_template",
    "chat_template_content_format",
    "default_chat_template_kwargs",
    "trust_request_chat_template",
    "response_role",
    "return_tokens_as_token_ids",
    "enable_auto_tool_choice",
    "exclude_tools_when_tool_choice_none",
    "tool_call_parser",
    "tool_parser_plugin",
    "tool_strict_level",
    "reasoning_parser",
    "enable_force_include_usage",
    "enable_prompt_tokens_details",
    "max_logprobs",
    "stream_interval",
)
PATHS = (NODE_PATH, TRANSFERS_PATH, TRACE_PATH, TIMELINE_PATH, INTEGRITY_PATH)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What vLLM itself knows best, after all flags and defaults; as `NodeInfo` has it, but for `frontend`."""

    served_models: list[str] = field(default_factory=list)
    adapters: list[Adapter] = field(default_factory=list)
    max_model_len_tokens: int = 0
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    routes: list[str] | None = None
    frontend: str = ""  # digest of what decides how its API server streams


class _WorkerPart(msgspec.Struct):
    """What `NodeInfo` has of the worker's snapshot; everything else in there is for `/baton/transfers`."""

    incarnation: str
    fingerprint: Fingerprint | None
    regions: list[RegionInfo]
    num_blocks: int
    layer_sync: str


class NodeApi:
    """Answers the routes under `/baton/`."""

    def __init__(
        self,
        *,
        role: Role,
        model: str,
        connector: ConnectorClient,
        refusals: Refusals,
        is_draining: Callable[[], bool] = lambda: False,
        load: Callable[[], NodeLoad | None] = lambda: None,
    ) -> None:
        self._role = role
        self._model = model
        self._connector = connector
        self._refusals = refusals
        self._is_draining = is_draining
        self._load = load
        self._versions = versions()
        self._last: _Known | None = None  # what a connector that was ready said last
        self.starts_with_tokens = False  # whether the connector has ever said that requests can; that does not change

    async def answer(self, scope: Scope, _: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await send_error(send, 405, f"{scope['path']} can only be read", [(b"allow", b"GET, HEAD")])
            return
        try:
            if scope["path"] == NODE_PATH:
                await send_json(send, 200, to_plain(await self._describe(engine_facts(scope))))
            elif scope["path"] == INTEGRITY_PATH:
                await send_json(send, 200, await self._connector.integrity())
            elif scope["path"] == TIMELINE_PATH:
                await self._answer_timeline(scope, send)
            else:
                await self._answer_transfers(scope, send)
        except NoAnswerError as exc:
            await send_error(send, 503, str(exc))

    async def _describe(self, engine: EngineFacts) -> NodeInfo:
        try:
            snapshots = await self._connector.both()
            worker = msgspec.convert(snapshots.worker, _WorkerPart)
        except (NoAnswerError, msgspec.ValidationError) as exc:
            if self._last is None:
                return self._info(engine, "starting", _NOTHING)
            if isinstance(exc, ConnectorSilentError):
                return self._info(engine, "silent", self._last)
            return self._info(engine, "failed", _NOTHING)
        addresses = [address for address in snapshots.scheduler.get("control_addresses", ()) if address]
        scheduler = snapshots.scheduler
        known = _Known(worker, addresses, scheduler.get("first_tokens", ""), bool(scheduler.get("both_ways")))
        self.starts_with_tokens = self.starts_with_tokens or bool(known.first_tokens)
        is_ready = worker.fingerprint is not None and snapshots.scheduler.get("engines") == engine.data_parallel_size
        self._last = known if is_ready else None
        return self._info(engine, "ready" if is_ready else "starting", known)

    def _info(self, engine: EngineFacts, state: NodeState, known: "_Known") -> NodeInfo:
        return NodeInfo(
            role=self._role,
            state="draining" if self._is_draining() else state,
            model=self._model,
            control_addresses=list(known.addresses),
            versions=self._versions,
            load=self._load(),
            both_ways=known.both_ways,
            first_tokens=known.first_tokens and f"{known.first_tokens}-{engine.frontend}-{engine.max_model_len_tokens}",
            **msgspec.structs.asdict(known.worker),
            **{name: value for name, value in asdict(engine).items() if name != "frontend"},
        )

    async def _answer_transfers(self, scope: Scope, send: Send) -> None:
        snapshots = await self._connector.both()
        query = parse_qs(scope.get("query_string", b"").decode(errors="replace"))
        if scope["path"] == TRANSFERS_PATH:
            refused = added_up(self._refusals.snapshot(), *(side.get("refused", {}) for side in snapshots))
            merged = merge(snapshots) | {"refused": refused}  # by any part of this node
            await send_json(send, 200, brief(merged) if "brief" in query else merged)
            return
        wanted = query.get("transfer_id", [])
        events = self._trace(snapshots, wanted, scope)
        if wanted and not any(event["ph"] == "X" for event in events):
            await send_error(send, 404, "no such transfer among those that ended last")
        else:
            await send_json(send, 200, events)

    def _trace(self, snapshots: Snapshots, wanted: Sequence[str], scope: Scope) -> list[Event]:
        process = int(snapshots.worker.get("incarnation") or "0", 16) & _MAX_PROCESS
        host, port = scope.get("server") or ("", 0)
        name, other = f"{self._role} node {host}:{port}", _OTHER[self._role]
        sides = [(snapshots, self._role, name, process)]
        if REVERSE in snapshots.worker:
            sides.append((_reverse(snapshots), other, f"{name} as a {other} node", process ^ 1))
        events = []
        for side, role, title, number in sides:
            events += trace_events(
                [record for record in recent(side) if not wanted or record["transfer_id"] in wanted],
                role=role,
                process=number,
                name=title,
                wall_offset_s=time.time() - time.monotonic(),
            )
        return events

    async def _answer_timeline(self, scope: Scope, send: Send) -> None:
        """Tell of one transfer: what either side of the connector knows, and on P when each layer was written and pushed."""
        wanted = parse_qs(scope.get("query_string", b"").decode(errors="replace")).get("transfer_id", [""])[0]
        if not is_transfer_id(wanted):
            await send_error(send, 400, "transfer_id must name a transfer: 32 hexadecimal digits")
            return
        snapshots = await self._connector.both()
        flows = await self._connector.flows(wanted) if self._role == "prefill" or REVERSE in snapshots.worker else []
        await send_json(send, 200, {"role": self._role, "flows": flows, **told_of(wanted, snapshots)})


_SIDES = ("scheduler", "worker")
_OTHER: Mapping[Role, Role] = {"prefill": "decode", "decode": "prefill"}
_MAX_PROCESS = 2**31 - 1  # what trace viewers take for a process id


class _Known(NamedTuple):
    """What the connector said of itself."""

    worker: _WorkerPart
    addresses: Sequence[str]
    first_tokens: str
    both_ways: bool = False


_NOTHING = _Known(_WorkerPart(incarnation="", fingerprint=None, regions=[], num_blocks=0, layer_sync=""), (), "")


def merge(snapshots: Snapshots) -> dict[str, Any]:
    """Join what both sides say about each open transfer; the rest stays apart, as `scheduler` and `worker`.

    Between nodes of several ranks a transfer has several flows, and these are listed instead of the one worker.
    """
    joined: dict[str, dict[str, Any]] = {}
    for side, snapshot in zip(_SIDES, snapshots, strict=True):
        for transfer in snapshot.get("transfers", []):
            entry = joined.setdefault(transfer["transfer_id"], {"transfer_id": transfer["transfer_id"]})
            known = {name: value for name, value in transfer.items() if name != "transfer_id"}
            if "flow" in known:
                entry.setdefault("flows", []).append(known)
            else:
                entry[side] = known
    rest = {side: _rest(snapshot) for side, snapshot in zip(_SIDES, snapshots, strict=True)}
    return {"transfers": list(joined.values()), **rest}


def brief(merged: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is said of single transfers, but for those that failed."""
    sides = {side: {name: value for name, value in merged[side].items() if name != "recent"} for side in _SIDES}
    return {**sides, "refused": merged["refused"]}


def told_of(transfer_id: str, snapshots: Snapshots) -> dict[str, Any]:
    """Return what both sides say of one transfer, be it open or among those that ended last."""

    def found(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [each for each in entries if each["transfer_id"].partition("/")[0] == transfer_id]

    ended = [*recent(snapshots), *recent(_reverse(snapshots))]
    return {"open": found(merge(snapshots)["transfers"]), "ended": found(ended)}


def _reverse(snapshots: Snapshots) -> Snapshots:
    """Return what the other side says of a node that sends and receives; of other nodes nothing."""
    return Snapshots(*(side.get(REVERSE, {}) for side in snapshots))


def recent(snapshots: Snapshots) -> list[dict[str, Any]]:
    """Return the records of the transfers that ended last; a prefill node's worker has them, a decode node's scheduler."""
    return [*snapshots.scheduler.get("recent", []), *snapshots.worker.get("recent", [])]


def engine_facts(scope: Scope) -> EngineFacts:
    """Read what vLLM's server keeps in its application's state; defaults where a version keeps it elsewhere."""
    state = getattr(scope.get("app"), "state", None)
    arguments, config = getattr(state, "args", None), getattr(state, "vllm_config", None)
    if arguments is None or config is None:
        return EngineFacts()
    parallel = config.parallel_config
    loaded = getattr(getattr(state, "openai_serving_models", None), "lora_requests", {})  # at run time too
    names = arguments.served_model_name or [arguments.model]
    return EngineFacts(
        served_models=[*names, *loaded],
        adapters=[
            Adapter(name=name, root=lora.lora_path, parent=lora.base_model_name or names[0])
            for name, lora in loaded.items()
        ],
        max_model_len_tokens=config.model_config.max_model_len,
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        data_parallel_size=parallel.data_parallel_size,
        frontend=frontend_digest(arguments),
        routes=sorted({path for route in getattr(scope["app"], "routes", ()) if (path := getattr(route, "path", ""))}),
    )


def frontend_digest(arguments: Any) -> str:
    """Return a digest of an API server's arguments; one that a version of vLLM does not have counts as unset."""
    said = [getattr(arguments, name, None) for name in _OF_STREAMS]
    return blake2b(repr(said).encode(), digest_size=8).hexdigest()


def _rest(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    elsewhere = ("transfers", "regions", "fingerprint")  # joined above, or on the other route
    return {name: value for name, value in snapshot.items() if name not in elsewhere}
