"""A prefill node's hooks run however CUDA graphs are asked for, or it does not start. With vLLM's own configuration code."""

import json
import subprocess
import sys
from itertools import cycle, product
from typing import Any

import pytest

from baton.deploy.embedded_model import WEIGHTS

MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
RUNNERS: list[dict[str, str]] = [{}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}]
FUSED = "-cc.pass_config.fuse_attn_quant=true"
ATTENTION_INSIDE = json.dumps({"splitting_ops": ["vllm::all_reduce"]})
NO_LAYERWISE, DECODES = "without asking for pieces", "on a decode node"


def graphs(cudagraph_mode: str, **more: Any) -> list[str]:
    """Flags that ask for a mode among other settings."""
    return ["--compilation-config", json.dumps({"cudagraph_mode": cudagraph_mode, **more})]


WAYS: list[list[str]] = [
    [],
    *([f"-O{level}"] for level in range(4)),
    ["--enforce-eager"],
    *([f"-cc.cudagraph_mode={mode}"] for mode in MODES),
    *(graphs(mode, mode=compiled) for mode, compiled in product(MODES, range(4))),
    *(graphs(mode, splitting_ops=[]) for mode in MODES),
    *(graphs(mode, use_inductor_graph_partition=True) for mode in MODES),
    *([f"-cc.cudagraph_mode={mode}", FUSED] for mode in MODES),
    ["--compilation-config", ATTENTION_INSIDE],
    ["-cc.backend=eager"],
    ["-O3", "-cc.cudagraph_mode=FULL"],
    ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}'],
]
SHORT_WAYS = [way for way in WAYS if len(way) < 2]  # the environment matters little to the longer ones
ENVIRONMENTS: list[dict[str, str]] = [
    {"VLLM_USE_BREAKABLE_CUDAGRAPH": "1"},
    {"TORCH_COMPILE_DISABLE": "1"},
    {"VLLM_BATCH_INVARIANT": "1"},
]
Case = tuple[list[str], dict[str, str], dict[str, str]]  # way, environment, runner


def all_cases() -> list[Case]:
    return [*product(WAYS, [{}], RUNNERS), *product(SHORT_WAYS, ENVIRONMENTS, RUNNERS)]


def chosen_cases() -> list[Case]:
    """Each way, and each short one in each environment; the runners take turns."""
    ways: list[Case] = [(way, {}, runner) for way, runner in zip(WAYS, cycle(RUNNERS), strict=False)]
    short = zip(product(SHORT_WAYS, ENVIRONMENTS), cycle([*RUNNERS, RUNNERS[0]]), strict=False)
    return [([], {}, runner) for runner in RUNNERS] + ways + [(way, env, runner) for (way, env), runner in short]


def transfer(role: str, settings: dict[str, Any]) -> list[str]:
    """Flags with our connector."""
    value = {
        "kv_connector": "BatonConnector",
        "kv_connector_module_path": "baton.kv_connector.connector",
        "kv_role": role,
        "kv_connector_extra_config": settings,
    }
    return ["--model", str(WEIGHTS), "--load-format", "dummy", "--kv-transfer-config", json.dumps(value)]


@pytest.fixture(scope="module", params=[chosen_cases, pytest.param(all_cases, marks=pytest.mark.exhaustive)])
def found(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """What comes of each way, by its name; all in one process, which takes seconds to import vLLM."""
    prefill = transfer("kv_producer", {"layerwise": True})
    cases = {
        f"{' '.join(way) or 'default'} {json.dumps(env | runner)}": {"flags": prefill + way, "env": env | runner}
        for way, env, runner in request.param()
    }
    cases[NO_LAYERWISE] = {"flags": transfer("kv_producer", {})}
    cases[DECODES] = {"flags": transfer("kv_consumer", {})}
    command = [sys.executable, "-m", "tests.support.cuda_config"]
    done = subprocess.run(
        command, input=json.dumps(list(cases.values())), capture_output=True, text=True, timeout=300, check=False
    )
    answer = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert answer, done.stderr[-2000:]
    return dict(zip(cases, json.loads(answer[0].removeprefix("RESULT ")), strict=True))


def test_hooks_run_in_every_configuration_that_starts(found: dict[str, dict[str, Any]]) -> None:
    """Pieces or no graphs at all, on both runners, before and after the attention has its say; the rest is refused by name."""
    wrong = {
        way: told
        for way, told in found.items()
        if way != DECODES and "refused" not in told and not {told["mode"], *told["settled"]} <= {"NONE", "PIECEWISE"}
    }
    started = [told["v2"] for told in found.values() if "refused" not in told]

    assert wrong == {}
    assert min(started.count(True), started.count(False)) > len(found) // 6


def test_only_what_gets_round_the_connector_s_wish_is_refused(found: dict[str, dict[str, Any]]) -> None:
    """The mode is raised again for fused attention, and what is not among the splitting ops is captured."""
    refused = {way: told["refused"] for way, told in found.items() if "refused" in told}

    assert refused.keys() == {way for way in found if FUSED in way and "=NONE" not in way} | {
        way for way in found if ATTENTION_INSIDE in way
    } | {NO_LAYERWISE}
    assert {told["by"] for told in found.values() if "refused" in told} == {"Baton"}
    assert all("on a prefill node" in sentence for sentence in refused.values())


def test_a_decode_node_keeps_its_full_graphs(found: dict[str, dict[str, Any]]) -> None:
    """It needs no hooks."""
    assert (found[DECODES]["mode"], found[DECODES]["v2"]) == ("FULL_AND_PIECEWISE", True)


def test_vllm_chooses_its_v2_runner_on_cuda(found: dict[str, dict[str, Any]]) -> None:
    """Unless the environment says otherwise."""
    assert [found[f"default {json.dumps(runner)}"]["v2"] for runner in RUNNERS] == [True, False, True]
