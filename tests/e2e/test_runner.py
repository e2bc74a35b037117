"""Our model runner in real servers, with tokens that come late; as nodes have them: test_first_token.py."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from baton.deploy.embedded_model import WEIGHTS
from tests.e2e.client import body_for, choice_difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import choose_prompts
from tests.e2e.stack import FLOAT32, Server, Stack

pytestmark = pytest.mark.e2e

ENGINE = ("--worker-cls", "baton.model_runner.cpu.EngineWorker")
# Drafts on the device, before the step's tokens come; the target itself, so that drafts of another step would show.
DRAFTS = {"method": "draft_model", "model": str(WEIGHTS), "num_speculative_tokens": 3}
DEVELOPMENT = {"VLLM_SERVER_DEV_MODE": "1"}  # offers `collective_rpc`
AT_ONCE = 8

FEW = {"allowed_token_ids": [4, 21, 84, 267, 300, 479, 500, 609]}  # so few that they repeat, and penalties matter

ASKED: Mapping[str, dict[str, Any]] = {
    "greedy": {},
    "without logprobs": {"logprobs": None},
    "few words": FEW,
    "frequency penalty": FEW | {"frequency_penalty": 1.8},
    "presence and repetition penalties": FEW | {"presence_penalty": 1.2, "repetition_penalty": 1.4},
    "bad words": {"bad_words": ["a", "the", "e"]},
    "several answers": {"n": 3, "temperature": 1.0, "seed": 11},
    "seeded, penalised": FEW | {"temperature": 0.8, "seed": 5, "frequency_penalty": 1.0, "top_p": 0.9},
    "an end that the request chooses": {"ignore_eos": False, "stop_token_ids": [17, 84, 295], "min_tokens": 2},
    "no more than one": {"max_tokens": 1},
    "logprobs of the prompt": {"prompt_logprobs": 2},
}


def answer(server: Server, body: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.ask("/v1/completions", body).json()["choices"]
    return found


def answers(
    server: Server,
    model: str,
    prompts: Sequence[Sequence[int]],
    asked: Mapping[str, dict[str, Any]] = ASKED,
    at_once: int = AT_ONCE,
) -> dict[str, list[dict[str, Any]]]:
    """Ask for everything there is to ask for, of several prompts."""
    bodies = {
        f"{name}, prompt {i}": body_for(model, prompt) | more
        for name, more in asked.items()
        for i, prompt in enumerate(prompts)
    }
    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip(bodies, pool.map(lambda body: answer(server, body), bodies.values()), strict=True))


def differences(wanted: dict[str, list[dict[str, Any]]], found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Say which answers differ, and in what."""
    return [
        f"{name}, answer {i}: {problem}"
        for name, choices in wanted.items()
        for i in range(max(len(choices), len(found[name])))
        if (problem := choice_difference(dict(enumerate(choices)).get(i, {}), dict(enumerate(found[name])).get(i, {})))
    ]


def report(server: Server) -> dict[str, Any]:
    """What a server's worker tells of its token path."""
    response = server.http.post(server.url + "/collective_rpc", json={"method": "token_report"}, timeout=60)
    (found,) = response.raise_for_status().json()["results"]
    return dict(found)


def started(stack: Stack, *flags: str, **more: Any) -> Server:
    server = stack.plain(*FLOAT32, *flags, **more)
    server.wait_ready()
    return server


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """One that is longer, and one that repeats itself."""
    return [choose_prompts(3)[1], [5, 9, 14, 22] * 12]


@pytest.fixture(scope="module")
def wanted(trio: Trio, prompts: list[list[int]]) -> dict[str, list[dict[str, Any]]]:
    return answers(trio.plain, trio.model, prompts)


def test_what_is_asked_for_makes_a_difference(wanted: dict[str, list[dict[str, Any]]]) -> None:
    """Penalties and seeds change the answers here, so that one that is ignored would show."""

    def tokens(name: str) -> list[list[int]]:
        return [wanted[f"{name}, prompt {i}"][0]["token_ids"] for i in range(2)]

    assert tokens("several answers") != tokens("greedy")
    for name in ("frequency penalty", "presence and repetition penalties", "seeded, penalised"):
        assert tokens(name) != tokens("few words"), name


def test_late_tokens_change_no_answer(
    stack: Stack, prompts: list[list[int]], wanted: dict[str, list[dict[str, Any]]]
) -> None:
    """Tokens that come as from a GPU, through slots and a thread, also when the next step has begun without them."""
    env = DEVELOPMENT | {"BATON_CPU_ASYNC_SCHEDULING": "1"}
    server = started(stack, name="late", target="tests.e2e.targets:late_tokens_vllm", env=env)

    found = answers(server, stack.model, prompts)
    seen = report(server)

    assert differences(wanted, found) == []
    assert seen["async_scheduling"]
    assert sum(seen["tokens"]["histograms"]["to_host_s"]["counts"]) == seen["tokens"]["submitted"] > 0
    assert seen["tokens"]["slots_in_use"] == 0


@pytest.mark.exhaustive
def test_speculation_gets_its_tokens(stack: Stack, prompts: list[list[int]]) -> None:
    """The drafts, those that are accepted, and their logprobs are the engine's own.

    One request at a time, and without chance: with drafts, vLLM 0.32 on a CPU differs from itself under a seed, and which
    requests share a step decides what it makes of penalties and allowed tokens.
    """
    asked = {name: more for name, more in ASKED.items() if "temperature" not in more}
    found, accepted = {}, {}
    for name, target in (("plain_vllm", "engine"), ("late_tokens_vllm", "late")):
        flags = ("--speculative-config", json.dumps(DRAFTS), *(ENGINE if target == "engine" else ()))
        server = started(stack, *flags, name=f"drafts-{target}", target=f"tests.e2e.targets:{name}", env=DEVELOPMENT)
        found[target] = answers(server, stack.model, prompts, asked, at_once=1)
        accepted[target] = server.metrics()["vllm:spec_decode_num_accepted_tokens_total"]
        assert ("tokens" in report(server)) == (target == "late")
        server.stop()

    assert differences(found["engine"], found["late"]) == []
    assert accepted["late"] == accepted["engine"] > 0
