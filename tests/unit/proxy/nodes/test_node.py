import itertools
from typing import Any, Literal

import msgspec
import pytest

from baton.contracts.configuration.schema import ProxyConfig
from baton.contracts.kv_transfer import PROTOCOL_VERSION
from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.circuit_breaker import Breaker
from baton.proxy.nodes.faded_line import MIN_SAMPLES
from baton.proxy.nodes.node import LONGEST_SILENCE_S, SEQUENCE_BYTES, Node, State, unpairable_because
from baton.proxy.nodes.readiness import models, readiness
from tests.unit.proxy.members import BFLOAT16, info, node

OTHER_ROLE = "it is configured as a prefill node but says that it is a decode node"
OURS, NEXT = str(PROTOCOL_VERSION), str(PROTOCOL_VERSION + 1)


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({"state": "starting"}, State.UNREADY, "it is starting"),
        ({"state": "draining"}, State.DRAINING, "it is draining"),
        ({"control_addresses": []}, State.UNREADY, "it announces no control address"),
        ({"role": "decode"}, State.UNREADY, OTHER_ROLE),
        ({"role": "decode", "both_ways": True}, State.UNREADY, OTHER_ROLE),  # no operator has named it
    ],
)
def test_a_node_that_may_not_be_used_says_why(changes: dict[str, Any], state: State, reason: str) -> None:
    """An answer to a probe is not enough. One that drains is well, and not to be confused with one that is unready."""
    probed = Node(url="http://n", role="prefill")
    probed.describe(msgspec.structs.replace(info("prefill"), **changes))

    assert (probed.state, probed.reason) == (state, reason)


def test_an_isolated_node_says_why_until_a_trial_is_due() -> None:
    now_s = [0.0]
    isolated = node("decode")
    isolated.breaker = Breaker(ProxyConfig(breaker_failures=2, breaker_open_s=2.0), clock=lambda: now_s[0])
    isolated.breaker.failed("connect")
    isolated.breaker.failed("connect")

    assert (isolated.state, isolated.reason) == (State.ISOLATED, "2 requests in a row failed: connect")
    now_s[0] = 2.0
    assert (isolated.state, isolated.reason) == (State.READY, "")


def test_a_drained_node_is_not_ready_until_it_is_undrained() -> None:
    """An operator's word counts whatever the probes say."""
    drained = node("decode")

    drained.draining = True
    assert (drained.state, drained.reason) == (State.DRAINING, "an operator drains it")
    drained.draining = False

    assert (drained.state, drained.reason) == (State.READY, "")


def test_the_trial_ends_with_its_request() -> None:
    """A request that ended without a verdict leaves room for the next trial."""
    tried = node("decode")
    tried.breaker = Breaker(ProxyConfig(breaker_failures=1, breaker_open_s=0.0), clock=lambda: 0.0)
    tried.breaker.failed("connect")

    end = tried.begin(7)
    during = tried.state
    end("whatever a callback is given")

    assert (during, tried.state) == (State.ISOLATED, State.READY)
    assert (tried.requests, tried.prompt_bytes) == (0, 0)


@pytest.mark.parametrize(("new_bytes", "load"), [(100, 100.0), (0, 900.0)], ids=["known", "not known"])
def test_what_a_prefill_node_has_of_a_prompt_is_not_work(new_bytes: int, load: float) -> None:
    """What it is believed to have in its cache, and a prompt whose answer it makes; each is counted off once."""
    prefill, decode = node("prefill"), node("decode")
    ends = [each.begin(900, new_bytes=new_bytes) for each in (prefill, decode)]
    assert (prefill.load, prefill.prompt_bytes) == (load, 900)
    assert decode.load == 900 + SEQUENCE_BYTES  # room for all of it

    end_stream = prefill.begin_stream(new_bytes or 900)
    assert prefill.load == 0.0
    end_stream()
    assert prefill.load == load
    for end in ends:
        end()
    assert (prefill.load, decode.load, prefill.computed_prompt_bytes) == (0.0, 0.0, 0)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_tokens_that_wait_for_prompts_teach_nothing_of_streams(role: Literal["prefill", "decode"]) -> None:
    """For one that is there at a report, that was there at the report before, or that came in between; of a node whose time for prompts is not known."""
    made, now_s, sum_s = node(role), [0.0], [0.0]
    made.clock = lambda: now_s[0]

    def alone_s_after(mean_s: float) -> float | None:
        now_s[0] += 1
        sum_s[0] += 10 * mean_s
        count = round(10 * now_s[0])
        load = NodeLoad(requests=0, prompt_bytes=0, running=1, inter_token_count=count, inter_token_sum_s=sum_s[0])
        made.describe(info(role, load=load))
        return made.inter_token.predict_s(1, now_s[0])

    for _ in range(2 * MIN_SAMPLES):
        alone_s_after(0.02)
    end = made.begin_computing(100) if role == "decode" else made.begin(100)
    assert alone_s_after(0.2) == pytest.approx(0.02)
    end()
    assert alone_s_after(0.2) == pytest.approx(0.02)
    made.prompt_rate.add(100, now_s[0])
    assert alone_s_after(0.2) == pytest.approx(0.02)

    assert alone_s_after(0.2) == pytest.approx(0.0207, abs=0.0001)


def test_nodes_that_differ_are_not_paired() -> None:
    reason = unpairable_because(node("prefill"), node("decode", fingerprint=BFLOAT16))

    assert reason == "dtype: 'float32' here, 'bfloat16' there"


@pytest.mark.parametrize("unheard", [Node(url="http://u", role="prefill"), node("prefill", fingerprint=None)])
def test_a_node_that_has_not_announced_its_kv_is_not_paired(unheard: Node) -> None:
    for one, other in itertools.permutations((unheard, node("decode"))):
        assert unpairable_because(one, other) == "a node has not announced its fingerprint"
    assert unheard.pairing is None


@pytest.mark.parametrize(
    ("prefill", "decode", "reason"),
    [
        (OURS, NEXT, f"the prefill node speaks protocol {OURS}, the decode node {NEXT}"),
        (NEXT, OURS, f"the prefill node speaks protocol {NEXT}, the decode node {OURS}"),
        (NEXT, NEXT, f"both speak protocol {NEXT}, this proxy {OURS}"),
        (OURS, OURS, None),
        (None, OURS, None),
    ],
)
def test_nodes_of_other_protocols_are_not_paired(prefill: str | None, decode: str, reason: str | None) -> None:
    """Nor two that understand each other and not this proxy. One that names none speaks ours, or its peer refuses it."""
    maker = node("prefill", versions={} if prefill is None else {"protocol": prefill})
    taker = node("decode", versions={"protocol": decode})

    assert unpairable_because(maker, taker) == reason
    assert (maker.pairing is not None and maker.pairing == taker.pairing) == (reason is None)


def test_what_is_in_flight_is_counted_and_given_back() -> None:
    counted = node("decode")

    def fail_while_carrying() -> None:
        with counted.carrying(7):
            assert (counted.requests, counted.prompt_bytes) == (1, 7)
            raise KeyError

    with pytest.raises(KeyError):
        fail_while_carrying()

    assert (counted.requests, counted.prompt_bytes) == (0, 0)


def test_readiness_needs_a_decode_node_and_under_refuse_a_matching_prefill_node() -> None:
    maker, taker = node("prefill"), node("decode", "http://d")
    stranger = node("prefill", fingerprint=BFLOAT16)

    assert readiness([maker], [taker], needs_prefill=True)["ready"]
    assert readiness([], [taker], needs_prefill=False)["ready"]
    assert readiness([], [], needs_prefill=False)["reasons"] == ["no decode node is ready"]
    assert readiness([], [taker], needs_prefill=True)["reasons"] == ["no prefill node is ready"]
    mismatched = readiness([stranger], [taker], needs_prefill=True)
    assert not mismatched["ready"]
    assert mismatched["reasons"] == ["no ready prefill node makes KV that a ready decode node can use"]
    reason = unpairable_because(stranger, taker)
    assert mismatched["unpairable"] == [{"prefill": stranger.url, "decode": taker.url, "reason": reason}]


def test_readiness_shows_each_node_and_what_stands_against_it() -> None:
    carrying, unheard = node("prefill", "http://p", 1), Node(url="http://d", role="decode")
    carrying.draining = True
    carrying.begin(7)

    shown = readiness([carrying], [unheard], needs_prefill=False)["nodes"]

    drained = {"slot": 1, "state": "draining", "reason": "an operator drains it", "models": ["m"], "requests": 1}
    unknown = {"slot": 0, "state": "unknown", "reason": "not probed yet", "models": [], "requests": 0}
    assert shown == [
        {"url": "http://p", "role": "prefill", "breaker": "closed", **drained},
        {"url": "http://d", "role": "decode", "breaker": "closed", **unknown},
    ]


def test_models_of_nodes_in_use_are_listed_once() -> None:
    unheard = Node(url="http://u", role="decode")
    listed = models([node("decode"), unheard, node("decode", served_models=["m", "x"])])

    assert [entry["id"] for entry in listed] == ["m", "x"]


@pytest.mark.parametrize(("for_s", "ready"), [(LONGEST_SILENCE_S - 1, True), (LONGEST_SILENCE_S, False)])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_proxy_is_ready_while_silence_is_short(
    role: Literal["prefill", "decode"], for_s: float, *, ready: bool
) -> None:
    """Then a balancer may look elsewhere; what silent nodes serve stays listed, and is served."""
    now_s = [0.0]
    quiet = node(role)
    quiet.clock = lambda: now_s[0]
    quiet.describe(info(role, state="silent"))
    now_s[0] = for_s
    prefill, decode = ([quiet], [node("decode")]) if role == "prefill" else ([node("prefill")], [quiet])

    found = readiness(prefill, decode, needs_prefill=True)

    assert found["ready"] is ready
    assert [each["state"] for each in found["nodes"]].count("silent") == 1
    assert len(models(decode)) == 1
