"""Prompts that are more than token ids: images travel exactly, embeddings stay on the decode node."""

import base64
import io
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from PIL import Image

from contracts.http import DISAGGREGATED, LOCAL, PATH_HEADER, REASON_HEADER
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import VERIFY
from tests.e2e.image_model import SIDE, write
from tests.e2e.stack import FLOAT32, Stack
from tests.e2e.test_kv_dtypes import stopped

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


def picture(seed: int) -> str:
    """A picture of noise as a URL."""
    pixels = torch.randint(0, 256, (SIDE, SIDE, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def about(model: str, url: str) -> dict[str, Any]:
    """A chat about a picture."""
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this? " * 40}]
    return {
        "model": model,
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "return_token_ids": True,
    }


def test_what_a_prompt_shows_is_part_of_it(stack: Stack, tmp_path: Path) -> None:
    """The same words about two pictures: each answer is one server's, and handed over."""
    model = str(write(tmp_path / "eyes"))
    prefill = stack.node("prefill", *FLOAT32, *VERIFY, "--max-num-batched-tokens", "256", model=model)
    decode, plain = stack.node("decode", *FLOAT32, *VERIFY, model=model), stack.plain(*FLOAT32, model=model)
    with stopped(stack, prefill, decode, plain):
        proxy = stack.proxy([prefill], [decode])
        with stopped(stack, proxy):
            answers = {
                (server.name, seed): httpx.post(
                    f"{server.url}/v1/chat/completions", json=about(model, picture(seed)), timeout=60
                )
                for server in (proxy, plain)
                for seed in (1, 2)
            }

    ids = {key: answer.raise_for_status().json()["choices"][0]["token_ids"] for key, answer in answers.items()}
    assert ids["proxy", 1] == ids["plain", 1]
    assert ids["proxy", 2] == ids["plain", 2]
    assert ids["plain", 1] != ids["plain", 2]
    assert {answers["proxy", seed].headers[PATH_HEADER] for seed in (1, 2)} == {DISAGGREGATED}


def test_a_prompt_of_embeddings_is_computed_where_it_is_decoded(stack: Stack, trio: Trio) -> None:
    """The answer is one server's, and a header says why only one node made it."""
    file = io.BytesIO()
    torch.save(torch.randn(40, 128, generator=torch.Generator().manual_seed(1)), file)
    body = {
        "model": stack.model,
        "prompt_embeds": base64.b64encode(file.getvalue()).decode(),
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
    }
    flags = (*FLOAT32, "--enable-prompt-embeds")
    decode, plain = stack.node("decode", *flags), stack.plain(*flags)
    with stopped(stack, decode, plain):
        proxy = stack.proxy([trio.prefill], [decode])
        with stopped(stack, proxy):
            ours, theirs = (
                httpx.post(f"{server.url}/v1/completions", json=body, timeout=60) for server in (proxy, plain)
            )

    assert ours.status_code == theirs.status_code == 200, ours.text
    assert ours.json()["choices"][0]["text"] == theirs.json()["choices"][0]["text"]
    assert ours.headers[PATH_HEADER] == LOCAL
    assert ours.headers[REASON_HEADER] == "the prompt is given as embeddings"
