"""Every finding that there is: what it means, how bad it is, how it is fixed. Pure.

`python -m baton.deploy.doctor.catalogue` prints the table that stands in `docs/doctor.md`; a test compares the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple


class Kind(NamedTuple):
    """One kind of finding."""

    meaning: str
    fix: str  # one sentence
    severity: Literal["wrong", "warning"] = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found. Its own `fix` says more than that of its kind; "" if it does not."""

    code: str
    where: str  # a URL, "prefill URL → decode URL", or "this machine"
    what: str
    fix_here: str = ""

    @property
    def kind(self) -> Kind:
        return CATALOGUE[self.code]

    @property
    def fix(self) -> str:
        return self.fix_here or self.kind.fix


MACHINE: Final[Mapping[str, Kind]] = {
    "configuration": Kind(
        "The configuration has a mistake, so nothing that reads it starts.",
        "Correct it; `baton config reference` prints every setting with its meaning.",
    ),
    "library": Kind(
        "Mooncake is not installed, or a system library that it needs is missing: no node starts here.",
        "Install what is named; on Debian and Ubuntu, `apt-get install -y libibverbs1 libnuma1 libcurl4`.",
    ),
    "engine-environment": Kind(
        "An environment variable of Mooncake's is set to something that the hand-off cannot work with.",
        "Unset the variable that is named, for every node.",
    ),
    "transfer-engine": Kind(
        "Mooncake starts, but cannot move bytes from this machine to itself.",
        "Check that nothing filters TCP ports 15000–17000 between the machine's own addresses, and see the reason given.",
    ),
    "vllm-missing": Kind(
        "vLLM is not installed, so no node starts here. A machine that runs the proxy alone does not need it.",
        "Install one of the extras: `pip install 'baton-serve[cpu]'`, `[cuda]` or `[npu]`.",
    ),
    "open-files": Kind(
        "A process may open few files. A relayed stream takes two on the proxy, and nodes keep connections to all peers.",
        "Raise the hard limit: `ulimit -n`, LimitNOFILE= of systemd, `ulimits:` of compose; 65,536 is usual.",
    ),
    "locked-memory": Kind(
        "RDMA pins the KV cache, and this process may pin less than that.",
        "No limit: `ulimit -l`, LimitMEMLOCK= of systemd (in Kubernetes the runtime's, or root and IPC_LOCK), `ulimits:` of compose.",
    ),
    "rdma-device": Kind(
        "The transport is RDMA, and there is no RDMA card, or none with an active port.",
        "Load the card's driver, show the card to the container (/dev/infiniband), plug it in; or set `transfer.protocol: tcp`.",
    ),
    "secret-file": Kind(
        "The file of the cluster secret is not named, cannot be read, or holds no usable secret.",
        "Put the same secret on every machine and name its file in `cluster.secret_file`; docs/security.md has its form.",
    ),
    "model": Kind(
        "The model that a node is to serve is not there.",
        "Correct `model` in the node's section: a folder with a config.json, or a hub id.",
    ),
    "address": Kind(
        "Peers could not reach the node at what it would announce, so it would refuse to start.",
        "Set `host` and `advertise_host` in the node's section to an address of this machine that peers reach.",
    ),
    "port": Kind(
        "A port that is to be listened on is taken, and not by a Baton server that works.",
        "End what has the port (`ss -ltnp`), or choose another one.",
    ),
}

NODE: Final[Mapping[str, Kind]] = {
    "proxy-unreachable": Kind(
        "The proxy does not answer on /ready, so its nodes are not known.",
        "Start the proxy, or correct the URL; or name the nodes with --prefill and --decode.",
    ),
    "no-nodes": Kind(
        "There is no prefill node or no decode node, so no prompt is handed over.",
        "Name both: in `proxy.prefill` and `proxy.decode`, or with --prefill and --decode.",
    ),
    "node-unreachable": Kind(
        "The node's HTTP port does not answer from here.",
        "Start the node, read its log; correct its URL; open its port to the proxy.",
    ),
    "cluster-secret": Kind(
        "The node holds another cluster secret: it would refuse every request of the proxy.",
        "Put the same secret file on all machines; a running process takes it up within a second (docs/security.md).",
    ),
    "no-node": Kind(
        "Something else than a Baton node answers at this URL.",
        "Correct the URL: host and HTTP port of a `baton prefill` or `baton decode`, without a path.",
    ),
    "wrong-role": Kind(
        "The node is of the other role than the list it stands in.",
        "Move its URL to the other list (`proxy.prefill`, `proxy.decode`), or start the other kind of node there.",
    ),
    "not-ready": Kind(
        "The node answers, but may not be used yet, or not any more.",
        "Wait if it is starting; if it has failed, read its log and start it again.",
    ),
    "silent": Kind(
        "The node's engine does not answer at the moment, although its process is there.",
        "Ask again; if it stays so, look for a stopped process, swapping or a step that never ends, and at its log.",
        severity="warning",
    ),
    "draining": Kind(
        "The node is stopping and takes no new work.",
        "Nothing, if that is wanted; else start it again.",
        severity="warning",
    ),
    "proxy-sees-another": Kind(
        "The node is well as seen from here, but the proxy does not use it.",
        "See the proxy's reason: its network, its secret, an open breaker, or a drain (`/admin/state`).",
    ),
    "no-probe": Kind(
        "The node cannot be asked to try transfers (it is of an older version), so its links are not known.",
        "Run this version of Baton on all nodes.",
        severity="warning",
    ),
    "versions": Kind(
        "The nodes run different releases of something that they should share. That is right during an upgrade only.",
        "Finish the upgrade: the same release on all nodes.",
        severity="warning",
    ),
}

PAIR: Final[Mapping[str, Kind]] = {
    "protocol": Kind(
        "The nodes speak different versions of the hand-off's protocol: an old version of Baton runs on one of them.",
        "Run the same release of Baton on both; until then decode nodes compute such prompts themselves.",
    ),
    "weights": Kind(
        "The nodes serve different weights, or revisions of them: KV of one means nothing to the other.",
        "Give both the same files, or the same hub id and --revision, and the same --hf-overrides.",
    ),
    "dtype": Kind(
        "The nodes compute, or keep KV, in different number formats.",
        "Give both the same --dtype and --kv-cache-dtype; `auto` follows the checkpoint, so name it.",
    ),
    "quantization": Kind(
        "The nodes quantise the model differently.",
        "Give both the same --quantization, and the same checkpoint.",
    ),
    "rope": Kind(
        "The nodes rotate positions differently: a cached key has been rotated already.",
        "Give both the same rope settings (config.json, --hf-overrides).",
    ),
    "attention": Kind(
        "The nodes' attention backends, or on CPUs their instruction sets, keep a block's bytes in different orders.",
        "Choose the same backend on both (VLLM_ATTENTION_BACKEND), the same vLLM, and CPUs of the same kind.",
    ),
    "block-size": Kind(
        "The nodes divide the KV cache into blocks of different sizes, which on CPUs or in this ratio cannot be exchanged.",
        "Give both the same --block-size.",
    ),
    "layout": Kind(
        "The nodes lay out the KV cache differently.",
        "Give both the same model, flags and version of vLLM.",
    ),
    "loopback-advertised": Kind(
        "One of the nodes announces a loopback address, at which the other one, elsewhere, reaches itself.",
        "Set `advertise_host` in that node's section (and `host`, if it listens on loopback) to an address its peers reach.",
    ),
    "control-unreachable": Kind(
        "The decode node cannot reach the prefill node's control port, so it computes every prompt itself, late.",
        "Open the control port (HTTP port + 1000 unless set) from decode to prefill nodes; check `advertise_host`.",
    ),
    "control-secret": Kind(
        "The prefill node's control port refuses the decode node's key: their secrets differ, or something else listens.",
        "Put the same secret file on both; check that `control_port` is the prefill node's own.",
    ),
    "data-unreachable": Kind(
        "KV cannot be pushed from the prefill to the decode node: every transfer would fail after seconds.",
        "Open TCP 15000–17000 (or MC_MIN_RPC_PORT–MC_MAX_RPC_PORT) from prefill to decode nodes; check `advertise_host`.",
    ),
    "slow-link": Kind(
        "KV travels slowly between the two, so requests wait for it.",
        "Use the fast network's address in `advertise_host`; look for shapers and half-duplex or 1 Gbit/s ports; or prefill less there.",
        severity="warning",
    ),
    "latency": Kind(
        "A small push takes long: the two are far from each other, and each hand-over waits for several of them.",
        "Place prefill and decode nodes that work together in one zone.",
        severity="warning",
    ),
    "idle-gap": Kind(
        "A push failed after the link had been idle: something between the two forgets connections.",
        "Raise the idle time of the firewall, NAT or load balancer between them, or take it out of the path.",
    ),
    "probe-failed": Kind(
        "The transfer could not be tried.",
        "See the reason; try again when no other doctor is asking.",
        severity="warning",
    ),
}

CATALOGUE: Final[Mapping[str, Kind]] = {**MACHINE, **NODE, **PAIR}


def table() -> str:
    parts = (("A machine", MACHINE), ("A node", NODE), ("A pair", PAIR))
    return "\n\n".join(f"### {title}\n\n{_rows(kinds)}" for title, kinds in parts)


def _rows(kinds: Mapping[str, Kind]) -> str:
    head = "| finding | | what it means | how it is fixed |\n|---|---|---|---|\n"
    return head + "\n".join(f"| `{code}` | {k.severity} | {k.meaning} | {k.fix} |" for code, k in kinds.items())


if __name__ == "__main__":
    print(table())
