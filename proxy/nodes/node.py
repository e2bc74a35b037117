"""One member: what was probed of it, how requests ended on it, what is in flight on it, whether it may be used. No I/O."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from baton.contracts.kv_transfer import PROTOCOL_VERSION, Grid, Role
from baton.contracts.node_info import RELAYS_AND_STARTS, Fingerprint, NodeInfo, NodeLoad, compatible, differences
from baton.proxy.nodes.circuit_breaker import Breaker
from baton.proxy.nodes.external_load import ExternalLoad
from baton.proxy.nodes.faded_rate import FadedRate, FadedShare, PromptRate
from baton.proxy.nodes.inter_token_time import InterTokenTime
from baton.proxy.nodes.latency_histogram import NodeTimes
from baton.proxy.nodes.moves import Moves
from baton.proxy.nodes.prefill_time import PrefillTime

# A node that cannot be heard of at all counts as down then; `/ready` counts on one whose engine is silent no longer.
LONGEST_SILENCE_S: Final = 30.0
SEQUENCE_BYTES: Final = 16_384  # of prompt: what a sequence costs a decode node beside the room that its prompt takes


class State(StrEnum):
    """What is known of a node; READY nodes get work, and SILENT ones where no node of their role is READY."""

    UNKNOWN = "unknown"  # never answered a probe yet
    READY = "ready"
    SILENT = "silent"  # does not answer for the moment, or its engine does not; nothing says that its process is gone
    UNREADY = "unready"  # answers, but may not be used: starting, wrong role, no control address
    DRAINING = "draining"  # takes no more: it is stopping, or an operator asked for it; its streams leave after `drain_handover_s`
    ISOLATED = "isolated"  # answers probes, but too many requests failed on it: see `circuit_breaker.py`
    DOWN = "down"  # its process is gone: it refuses connections, breaks them or says so itself; or silent for long


TAKES_WORK: Final = frozenset((State.READY, State.SILENT))
OUR_PROTOCOL: Final = str(PROTOCOL_VERSION)


class Pairing(NamedTuple):
    """What two nodes must have in common for KV to go from one to the other."""

    fingerprint: Fingerprint
    protocol: str

    def fits(self, other: "Pairing") -> bool:
        """Whether a node of the one and a node of the other may exchange KV."""
        return self.protocol == other.protocol and compatible(self.fingerprint, other.fingerprint)


@dataclass(slots=True, eq=False)
class Revision:
    """Counts the changes of what nodes may be used for."""

    number: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """A member. Probes and outcomes write it, choices read it."""

    url: str
    role: Role
    slot: int = 0  # no other member has this number, nor any former one that still has requests in flight
    revision: Revision = field(default_factory=Revision)  # of all members
    breaker: Breaker = field(default_factory=Breaker)
    draining: bool = False  # an operator wants it to end what it has and take no more
    takes_either_role: bool = False  # an operator has named it for this role, whichever it was started in
    evacuated_at: float = 0.0  # an operator has wanted the streams that it had then to go on elsewhere (time.monotonic)
    moves: Moves = field(default_factory=Moves)  # of its streams, since it was last drained or evacuated
    probed: State = State.UNKNOWN
    probed_reason: str = "not probed yet"  # why that is not READY
    clock: Callable[[], float] = time.monotonic
    silent_since_s: float = 0.0  # on that clock, if it is SILENT
    unheard_since_s: float | None = None  # likewise: nothing has come from it since, not even from its API
    info: NodeInfo | None = None  # the last description that it gave
    base_names: frozenset[str] = frozenset()  # names of its base model, by that description
    adapter_names: frozenset[str] = frozenset()  # names of that base model's adapters
    pairing: Pairing | None = None  # of that description; None: it takes part in no transfer
    requests: int = 0  # in flight through this proxy
    prompt_bytes: int = 0  # of those requests
    others: ExternalLoad = field(default_factory=ExternalLoad)  # what it has from others, as of the last probe
    times: NodeTimes = field(default_factory=NodeTimes)
    prefill_time: PrefillTime = field(default_factory=PrefillTime)
    inter_token: InterTokenTime = field(default_factory=InterTokenTime)
    target_inter_token_s: float = 0.0  # that is aimed at; 0: a multiple of one stream's
    prompt_share: FadedRate = field(default_factory=FadedRate)  # of its time at most, by prompts through this proxy
    prompt_rate: PromptRate = field(default_factory=PromptRate)  # of those prompts
    late_pairs: FadedShare = field(default_factory=FadedShare)  # of pairs' first tokens, those expected too late
    crowded_until_s: float = 0.0  # monotonic: before that one node serves what a pair with it would
    open_streams: int = 0  # answers through this proxy whose prompt is computed
    computed_prompt_bytes: int = 0  # of a prefill node: what it has computed, or is believed to have in its cache
    own_prompt_bytes: int = 0  # what it computes itself of prompts whose tokens have not come yet
    load: float = 0.0  # work in bytes of prompt; written where it changes, as a choice reads it of all nodes

    @property
    def state(self) -> State:
        """Whether it may get work, all things considered."""
        if self.probed is not State.READY and self.probed is not State.SILENT:
            return self.probed
        if self.draining:
            return State.DRAINING
        return self.probed if self.breaker.admits else State.ISOLATED

    @property
    def reason(self) -> str:
        """Why it is not READY; "" if it is."""
        match self.state:
            case State.READY:
                return ""
            case State.ISOLATED:
                return self.breaker.reason
            case State.DRAINING if self.draining:
                return "an operator drains it"
            case _:
                return self.probed_reason

    @property
    def silent_s(self) -> float:
        """How long it has been silent; 0 if it is not."""
        return self.clock() - self.silent_since_s if self.probed is State.SILENT else 0.0

    @property
    def unheard_s(self) -> float:
        """How long nothing has come from it; 0 if its last probe was answered."""
        return 0.0 if self.unheard_since_s is None else self.clock() - self.unheard_since_s

    @property
    def own(self) -> NodeLoad:
        """What it has through this proxy."""
        return NodeLoad(requests=self.requests, prompt_bytes=self.prompt_bytes)

    @property
    def fingerprint(self) -> Fingerprint | None:
        """What KV it makes or takes, as far as it said."""
        return self.info.fingerprint if self.info else None

    @property
    def grid(self) -> Grid:
        """The ranks of each of its engines, as far as it said."""
        return Grid(self.info.tensor_parallel_size, self.info.pipeline_parallel_size) if self.info else Grid()

    @property
    def incarnation(self) -> str:
        """Which start of its process this is, as far as it said."""
        return self.info.incarnation if self.info else ""

    @property
    def streams(self) -> int:
        """How many sequences it makes tokens for, as far as is known; those that run on a prefill node may be prompts."""
        running = self.info.load.running if self.role == "decode" and self.info and self.info.load else None
        return max(self.open_streams, running or 0)

    @property
    def kv_usage(self) -> float | None:
        """The share of its KV cache that was in use at the last probe, as far as it said."""
        return self.info.load.kv_usage if self.info and self.info.load else None

    def serves(self, model: str) -> bool:
        """Return whether it said that it serves this model; "" is whichever it has."""
        return self.info is not None and (not model or model in self.info.served_models)

    def describe(self, info: NodeInfo, own: NodeLoad | None = None) -> None:
        """Take over a probe's answer, and what it had through this proxy when that was made (now, if not given)."""
        if self.incarnation != info.incarnation:
            self.others.forget()
            self.prefill_time, self.inter_token, self.prompt_rate = PrefillTime(), InterTokenTime(), PromptRate()
            self.prompt_share, self.late_pairs, self.crowded_until_s = FadedRate(), FadedShare(), 0.0
        names, pairing = names_of(info), pairing_of(info)
        is_other = self.info is None or self.info.served_models != info.served_models or pairing != self.pairing
        if is_other or names != (self.base_names, self.adapter_names):
            self.revision.number += 1
        self.info = info
        self.unheard_since_s = None
        (self.base_names, self.adapter_names), self.pairing = names, pairing
        self.others.learn(info.load, own or self.own)
        self._learn_inter_token(info.load)
        self._weigh()
        if reason := unusable_because(self.role, info, takes_either=self.takes_either_role):
            self._become(State.DRAINING if info.state == "draining" else State.UNREADY, reason)
        elif info.state == "silent":
            self._become(State.SILENT, "its engine does not answer")
        else:
            self._become(State.READY, "")

    def recall(self, former: "Node") -> None:
        """Take over what was learned when it was a member in this role before; if its process is another one, the first probe ends that."""
        self.info, self.prefill_time, self.inter_token = former.info, former.prefill_time, former.inter_token
        self.inter_token.begin_again()

    def lose(self, state: State, reason: str) -> None:
        """Take it out of use, or with SILENT out of first choice, until a probe succeeds."""
        if state is State.SILENT and self.unheard_since_s is None:
            self.unheard_since_s = self.clock()
        self._become(state, reason)
        self.forget_others()

    def forget_others(self) -> None:
        """What others have there is not known any more."""
        self.others.forget()
        self._weigh()

    @property
    def starts_with_tokens(self) -> bool:
        """Whether a request can start with tokens that its client has."""
        return self.info is not None and self.info.first_tokens.startswith(RELAYS_AND_STARTS)

    @property
    def sends_streams(self) -> bool:
        """Whether decode nodes can have the KV of streams from each other; of several engines it is not known which has a stream."""
        return self.info is not None and self.info.both_ways and len(self.info.control_addresses) == 1

    def begin(self, prompt_bytes: int, *, new_bytes: int = 0) -> Callable[..., None]:
        """Count a request, with so much of its prompt new to the node (0: not known), until what is returned is called."""
        trial = self.breaker.begin()
        self.requests += 1
        self.prompt_bytes += prompt_bytes
        end_computed = self.count_computed(prompt_bytes - new_bytes if new_bytes else 0)

        def end(*_: Any) -> None:
            self.requests -= 1
            self.prompt_bytes -= prompt_bytes
            end_computed()
            self.breaker.end(trial)

        return end

    @contextmanager
    def carrying(self, prompt_bytes: int) -> Iterator[None]:
        """Count one request as in flight during the block."""
        end = self.begin(prompt_bytes)
        try:
            yield
        finally:
            end()

    def begin_stream(self, new_bytes: int) -> Callable[[], None]:
        """Count an answer whose prompt is computed until what is returned has been called; `new_bytes`: of the prompt, what waited."""
        self.open_streams += 1
        end_computed = self.count_computed(new_bytes)

        def end() -> None:
            self.open_streams -= 1
            end_computed()

        return end

    def count_computed(self, new_bytes: int) -> Callable[..., None]:
        """Count a prompt of a request in flight as computed until what is returned has been called; a decode node keeps room for all of it."""
        computed = new_bytes if self.role == "prefill" else 0
        self.computed_prompt_bytes += computed
        self._weigh()

        def end(*_: Any) -> None:
            self.computed_prompt_bytes -= computed
            self._weigh()

        return end

    def begin_computing(self, prompt_bytes: int) -> Callable[[], None]:
        """Count a prompt that a decode node computes itself until what is returned has been called."""
        self.own_prompt_bytes += prompt_bytes

        def end() -> None:
            self.own_prompt_bytes -= prompt_bytes

        return end

    def _become(self, state: State, reason: str) -> None:
        if state is State.SILENT and self.probed is not State.SILENT:
            self.silent_since_s = self.clock()
        if state is not self.probed:
            self.revision.number += 1
        self.probed, self.probed_reason = state, reason

    def _learn_inter_token(self, load: NodeLoad | None) -> None:
        now_s, waits = self.clock(), bool(self.load if self.role == "prefill" else self.own_prompt_bytes)
        has_prompts = self.prompt_rate.was_computing(now_s, is_computing=waits)
        share = min(0.9, self.prompt_share.at(now_s)) if has_prompts else None
        predicted_s = self.inter_token.predict_s(load.running or 1, now_s) if load else None
        seen_s = self.inter_token.learn(load, share, now_s)
        if seen_s and predicted_s:
            self.times.inter_token_prediction.observe(seen_s * (1 - (share or 0.0)) / predicted_s)

    def _weigh(self) -> None:
        """A decode node works for every sequence as well."""
        requests = self.requests + self.others.requests if self.role == "decode" else 0.0
        prompt_bytes = self.prompt_bytes - self.computed_prompt_bytes + self.others.prompt_bytes
        self.load = prompt_bytes + requests * SEQUENCE_BYTES


def usable(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes that answer; where none does, those that are silent: waiting may help, a refusal cannot."""
    return answering([node for node in nodes if node.state in TAKES_WORK])


def answering(nodes: list[Node]) -> list[Node]:
    """Return, of nodes that take work, those that answer; all where none does."""
    return [node for node in nodes if node.probed is State.READY] or nodes


def unusable_because(role: Role, info: NodeInfo, *, takes_either: bool = False) -> str | None:
    """Say why a node may not be used; None if it may. `takes_either`: in any role, if it sends and receives."""
    if info.role != role and not (takes_either and info.both_ways):
        return f"it is configured as a {role} node but says that it is a {info.role} node"
    if info.state not in ("ready", "silent"):
        return f"it is {info.state}"
    if role == "prefill" and not info.control_addresses:
        return "it announces no control address"
    return None


def names_of(info: NodeInfo) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of a node's base model (the first, where it does not say) and of its adapters (the others)."""
    served = frozenset(info.served_models)
    if info.adapters is None:
        return frozenset(info.served_models[:1]), served - frozenset(info.served_models[:1])
    adapters = frozenset(adapter.name for adapter in info.adapters)
    return served - adapters, adapters


def protocol_of(info: NodeInfo) -> str:
    """Which version of the protocol a node speaks; one that does not say is taken to speak ours, and its peers check."""
    return info.versions.get("protocol", OUR_PROTOCOL)


def pairing_of(info: NodeInfo) -> Pairing | None:
    """Return what a peer must have as well; None if the node takes no part in transfers that this proxy arranges.

    A node of another protocol would refuse the parameters that this proxy signs.
    """
    protocol = protocol_of(info)
    return Pairing(info.fingerprint, protocol) if info.fingerprint is not None and protocol == OUR_PROTOCOL else None


def unpairable_because(prefill: Node, decode: Node) -> str | None:
    """Say why no KV may go from one node to the other; None if it may."""
    if prefill.info is None or decode.info is None or prefill.fingerprint is None or decode.fingerprint is None:
        return "a node has not announced its fingerprint"
    mine, theirs = protocol_of(prefill.info), protocol_of(decode.info)
    if mine != theirs:
        return f"the prefill node speaks protocol {mine}, the decode node {theirs}"
    if mine != OUR_PROTOCOL:
        return f"both speak protocol {mine}, this proxy {OUR_PROTOCOL}"
    return "; ".join(differences(prefill.fingerprint, decode.fingerprint)) or None
