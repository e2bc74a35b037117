"""Every setting of Baton, as frozen objects with units in the names.

`load.py` fills them once, at start-up, from `baton.yaml`, the environment and flags. Sections are the top-level keys of
`baton.yaml`, fields the keys inside them. The comment behind a field is its description: `baton config check` and the
configuration reference print it. Two environment variables are read elsewhere: `load.READ_ELSEWHERE`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from baton.contracts.configuration.kinds import AtLeastOne, Delay, Number, Objects, Port, Seconds, Share, Verify, Words

LayerSyncPolicy = Literal["auto", "event", "stream", "forward"]
RoutingPolicy = Literal["least_load", "power_of_two", "round_robin", "consistent_hash", "prefix_affinity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """What every process of a deployment shares."""

    secret_file: Path | None = None  # file with one or two cluster secrets; `baton serve` generates one if unset


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """The HTTP front door."""

    host: str = "127.0.0.1"  # address that it listens on; 0.0.0.0: all of the machine's
    port: Port = 8000  # that clients come to
    workers: AtLeastOne = 1  # processes that share the port; limits and retry budgets are each one's own
    prefill: tuple[str, ...] = ()  # base URLs of prefill nodes; dns://name:port stands for all addresses of the name
    decode: tuple[str, ...] = ()  # likewise of decode nodes
    dns_interval_s: Seconds = 5.0  # how often such names are resolved
    admin_token_file: Path | None = None  # file with the token of the admin API, which is off without it
    api_keys_file: Path | None = None  # who may ask, and how much; see security.md. Unset: everybody
    tls_cert_file: Path | None = None  # certificate chain (PEM): clients are served over TLS then
    tls_key_file: Path | None = None  # its private key (PEM); unset: it stands in the same file
    tls_client_ca_file: Path | None = None  # clients need a certificate of one of these authorities (PEM)
    max_header_bytes: AtLeastOne = 32 * 1024  # of one request's line and headers
    max_headers: AtLeastOne = 128  # of one request
    when_no_prefill: Literal["decode_local", "refuse"] = "decode_local"  # no healthy prefill node
    prefill_policy: RoutingPolicy = "prefix_affinity"  # which prefill node gets a prompt; see operations.md
    decode_policy: RoutingPolicy = "least_load"  # which decode node gets a request
    routing_key_header: str = "x-session-id"  # what consistent_hash keeps on one node; without it, the body's `user`
    probe_interval_s: Seconds = 1.0  # how often each node's health and description are read
    probe_timeout_s: Seconds = 2.0  # two probes in a row without an answer for so long mean silent
    breaker_failures: AtLeastOne = 5  # so many failed requests in a row isolate a node that still answers probes
    breaker_failure_share: Share = 0.5  # or this share of all (10 at least) within `breaker_window_s`
    breaker_window_s: Seconds = 10.0  # over which that share is taken
    breaker_open_s: Seconds = 2.0  # until one request tries an isolated node again; doubled each time that fails
    connect_timeout_s: Seconds = 3.0  # for a connection to a node
    request_timeout_s: Seconds = 600.0  # from the request's arrival to its last byte
    timeout_header: str = "x-request-timeout-s"  # with it a client asks for less
    max_requests: AtLeastOne = 8192  # being served at once, by one process; others wait
    max_waiting: Number = 4096  # requests in the queue; more get 503
    max_waiting_per_tenant: AtLeastOne = 1024  # of one tenant; more get 429
    tenant_header: str = ""  # who asks, if a gateway says so; empty or missing: the API key
    node_metrics: bool = False  # add vLLM's own series of all nodes to `/metrics`, with their role and url
    priority_header: str = ""  # lower goes first; else the body's `priority`; empty: neither counts
    client_stall_timeout_s: Seconds = 60.0  # a client that reads nothing for so long is dropped
    local_below_bytes: Number = 0  # a prompt of which a decode node lacks less is computed there; 0: none is by choice
    placement: Literal["by_cost", "pairs"] = "by_cost"  # by_cost: one node serves alone where a pair is too slow
    target_first_token_s: Delay = 0.0  # time to the first token; by_cost keeps to it; 0: four times an idle node's
    target_inter_token_s: Delay = 0.0  # time between two tokens of a stream; 0: three times that of one alone
    max_prompt_share: Share = 1.0  # of a node's time that prompts may take, for by_cost to mix them with streams there
    max_own_prompt_bytes: AtLeastOne = 1024 * 1024  # of prompts that one decode node computes itself at once
    max_attempts: AtLeastOne = 4  # of one request, on whichever nodes
    retry_share: Share = 0.2  # retry budget: what each request adds to it; a retry on another node costs 1
    retry_burst: AtLeastOne = 512  # … and so many beyond that, for the loss of a node with all its requests
    resume: Literal["off", "all"] = "all"  # whether streams that break go on elsewhere; see failover.md
    stall_timeout_s: Seconds = 5.0  # streams of a silent decode node that got nothing for so long go on elsewhere
    drain_handover_s: Number = 10  # seconds: streams that a draining decode node has after so long go on elsewhere
    return_answers: Literal["off", "on", "auto"] = "off"  # KV of answers to prefill nodes; auto: where it saves time
    relay_first_token: bool = True  # a stream begins with the prefill node's token, or with the decode node's own
    max_body_bytes: AtLeastOne = 64 * 1024 * 1024  # of one request
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # the least that is written
    log_format: Literal["text", "json"] = "text"  # of every line
    access_log: Literal["off", "errors", "all"] = "off"  # a line for each request, or for each that failed
    otlp_endpoint: str = ""  # collector that traces go to, such as http://collector:4318; empty: no traces
    trace_share: Share = 0.0  # of the requests whose client says nothing of traces


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    """The KV hand-off, on both kinds of node."""

    layer_sync: LayerSyncPolicy = "auto"  # when a layer may be read; see architecture.md
    protocol: Literal["tcp", "rdma", "ascend", "nvlink"] = "tcp"  # Mooncake's; nvlink is refused: see cuda.md
    receive_engines: AtLeastOne = 2  # fence domains per decode rank
    beat_interval_s: Seconds = 0.5  # how often peers exchange their open transfers
    peer_timeout_s: Seconds = 5.0  # a peer silent for so long is taken for dead
    reconnect_timeout_s: Seconds = 1.0  # likewise one whose connection broke and that did not answer for so long
    transfer_timeout_s: Seconds = 120.0  # from reservation to commit; then the decode node recomputes
    orphan_timeout_s: Seconds = 30.0  # a finished prompt that no decode node asks for, and no proxy cancels, is let go
    quarantine_max_s: Seconds = 2.0  # blocks of a failed transfer are fenced and freed after so long at the latest
    quarantine_max_share: Share = 0.1  # … or as soon as they exceed this share of the pool
    early_reserve_share: Share = 0.25  # below this share of free blocks, reserve only for prompts that have started
    first_token_wait_s: Seconds = 1.0  # a first token for a client waits so long for room on the decode node
    push_max_bytes: AtLeastOne = 8 * 1024 * 1024  # one push call
    push_max_descriptors: AtLeastOne = 256  # copies in one push call
    in_flight_max_descriptors: AtLeastOne = 1024  # per peer, over all calls
    both_ways: bool = False  # prefill nodes also receive KV and decode nodes also send it, that of answers
    kv_verify: Verify = "off"  # compare digests of sent and received KV: full, or sample:N; the prefill node decides


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """One prefill or decode node (sections `prefill_node` and `decode_node`)."""

    model: str = ""  # path or hub id; `baton serve` without one: the embedded model
    host: str = "127.0.0.1"  # address that it listens on, for HTTP and for control
    port: Port = 8100  # of its HTTP server
    advertise_host: str = ""  # address that peers reach this node at; empty: `host`, or its first non-loopback one
    control_port: Port = 0  # ZMQ port of a node that sends KV; 0: `port` + 1000
    drain_timeout_s: Seconds = 20.0  # after SIGTERM, for running requests and pushes to end; then vLLM is stopped
    model_runner: Literal["auto", "baton", "engine"] = "auto"  # auto: baton on a CPU, else engine; see runner.md
    sync_audit: bool = False  # count what makes the model thread wait for the device; see runner.md
    step_timeout_s: Seconds = 300.0  # the longest that a call of one step may take; then the node ends; see runner.md
    beside: Objects = ()  # KV connectors of vLLM beside Baton's, with kv_connector and settings; see composition.md
    vllm_args: Words = ()  # any further flag of vLLM's OpenAI server


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """The one-machine launcher, `baton serve`."""

    prefill: Number = 1  # number of prefill nodes
    decode: AtLeastOne = 1  # number of decode nodes
    prefill_base_port: Port = 0  # of the first prefill node; the others follow; 0: the proxy's port + 100
    decode_base_port: Port = 0  # of the first decode node; the others follow; 0: the proxy's port + 200
    pin_cores: bool = True  # give each node cores of its own where there are several
    start_timeout_s: Seconds = 240.0  # until every process must be ready
    stop_timeout_s: Seconds = 10.0  # then serve kills what has not ended; streams of any proxy have 2 s less
    on_node_exit: Literal["restart", "stop"] = "restart"  # of a node while serving: at most 5 restarts in 300 s


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesConfig:
    """The controller that changes nodes' roles by load, `baton roles`; [operations](operations.md#roles-by-load)."""

    proxies: tuple[str, ...] = ()  # base URLs of all proxies, or dns://name:port; unset: this machine's
    interval_s: Seconds = 2.0  # between two looks at the load
    looks: AtLeastOne = 3  # so many in a row must show that a change helps
    least_load: Share = 0.5  # utilisation of the busier role below which nothing is changed
    margin: Share = 0.2  # by this share the change must lower it
    cooldown_s: Delay = 30.0  # from one change to the next at least
    max_changes_per_hour: Number = 0  # 0: as many as that allows


@dataclass(frozen=True, slots=True, kw_only=True)
class BatonConfig:
    """Everything, one section a field."""

    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    proxy: ProxyConfig = field(default_factory=ProxyConfig)
    transfer: TransferConfig = field(default_factory=TransferConfig)
    prefill_node: NodeConfig = field(default_factory=NodeConfig)
    decode_node: NodeConfig = field(default_factory=lambda: NodeConfig(port=8200))
    serve: ServeConfig = field(default_factory=ServeConfig)
    roles: RolesConfig = field(default_factory=RolesConfig)
