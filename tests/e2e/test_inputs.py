"""Prompts that are more than token ids stay on the decode node."""

import base64
import io

import pytest
import torch

from baton.contracts.http import LOCAL, PATH_HEADER, REASON_HEADER
from tests.e2e.conftest import Trio
from tests.e2e.stack import FLOAT32, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(300)]


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
    proxy = stack.proxy([trio.prefill], [decode])
    plain.wait_ready()

    ours, theirs = (server.ask("/v1/completions", body) for server in (proxy, plain))

    assert ours.json()["choices"][0]["text"] == theirs.json()["choices"][0]["text"]
    assert ours.headers[PATH_HEADER] == LOCAL
    assert ours.headers[REASON_HEADER] == "the prompt is given as embeddings"
