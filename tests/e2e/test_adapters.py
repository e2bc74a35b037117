"""LoRA adapters: a prompt's KV is that of its adapter."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from baton.contracts.http import DISAGGREGATED
from baton.deploy.embedded_model import WEIGHTS
from tests.e2e.client import difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import VERIFY, answers
from tests.e2e.stack import FLOAT32, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RANK = 8


def write_adapter(folder: Path, seed: int) -> str:
    """Write an adapter for the embedded model that changes its keys and values; returns where it is."""
    model = json.loads((WEIGHTS / "config.json").read_text())
    head = model["hidden_size"] // model["num_attention_heads"]
    sizes = {"k_proj": model["num_key_value_heads"] * head, "v_proj": model["num_key_value_heads"] * head}
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(model["num_hidden_layers"]):
        for part, out in sizes.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, model["hidden_size"], generator=draw) * 0.1
            tensors[f"{name}.lora_B.weight"] = torch.randn(out, RANK, generator=draw) * 0.1
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": [*sizes], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"task_type": "CAUSAL_LM"}))
    return str(folder)


def test_each_adapters_prompts_are_exact(stack: Stack, trio: Trio, tmp_path: Path) -> None:
    """One prompt for the model and for two adapters. The second's file was replaced after P loaded it: those prompts D computes."""
    files = [write_adapter(tmp_path / name, seed) for seed, name in enumerate(("first", "second"))]
    modules = ("--lora-modules", *(f"{Path(file).name}={file}" for file in files))
    flags = [*FLOAT32, "--enable-lora", "--max-lora-rank", str(RANK), *modules]
    prompts = trio.prompts[10:12]
    prefill = stack.node("prefill", *flags, *VERIFY, "--max-num-batched-tokens", "256")
    prefill.wait_ready()
    former = answers(prefill.url, "second", prompts)
    write_adapter(tmp_path / "second", 2)
    decode, plain = stack.node("decode", *flags, *VERIFY), stack.plain(*flags)
    proxy = stack.proxy([prefill], [decode])
    plain.wait_ready()

    found, expected = (
        {name: answers(server.url, name, prompts) for name in (stack.model, "first", "second")}
        for server in (proxy, plain)
    )
    failures = decode.transfers()["scheduler"]["failures"]

    for name, got in found.items():
        assert [difference(*pair) for pair in zip(expected[name], got, strict=True)] == [""] * len(prompts), name
    assert len({answer[0].tokens for answer in expected.values()}) == len(expected)  # the adapters do something
    assert [answer.tokens for answer in former] != [answer.tokens for answer in expected["second"]]
    assert {answer.path for name in (stack.model, "first") for answer in found[name]} == {DISAGGREGATED}
    assert [failure["reason"] for failure in failures] == ["the two nodes see different prompts"] * len(prompts)
