"""Clients that people use, unmodified, against the real stack: each gets from Baton what it gets from one vLLM server."""

import json
import subprocess
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.conftest import Trio
from tests.e2e.stack import Stack
from tests.support.clients_venv import clients_python

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

QUESTION = "Who keeps the lighthouse in spring?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]


def test_the_openai_client(trio: Trio) -> None:
    """Chats and responses, whole and streamed, from both servers the same text; no embeddings of this model, from neither."""
    greedy: dict[str, Any] = {"model": trio.model, "temperature": 0}
    chats, texts = [], []
    for server in (trio.proxy, trio.plain):
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            chat = client.chat.completions.create(messages=MESSAGES, max_tokens=24, **greedy)
            parts = client.chat.completions.create(messages=MESSAGES, max_tokens=24, stream=True, **greedy)
            streamed = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
            chats += [chat.choices[0].message.content, streamed]
            whole = client.responses.create(input=QUESTION, max_output_tokens=24, **greedy)
            pieces = client.responses.create(input=QUESTION, max_output_tokens=24, stream=True, **greedy)
            texts += [whole.output_text, "".join(p.delta for p in pieces if p.type == "response.output_text.delta")]
            with pytest.raises(openai.NotFoundError):
                client.embeddings.create(model=trio.model, input="a")

    for said in (chats, texts):
        assert said[0]
        assert len(set(said)) == 1


def test_the_anthropic_client(trio: Trio) -> None:
    """Whole, streamed, a count of tokens, an unknown model."""
    said = []
    for server in (trio.proxy, trio.plain):
        with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            asked: dict[str, Any] = {"model": trio.model, "messages": MESSAGES}
            greedy = {"temperature": 0}  # no argument of this client any more
            whole = client.messages.create(**asked, max_tokens=24, extra_body=greedy)
            with client.messages.stream(**asked, max_tokens=24, extra_body=greedy) as stream:
                text = "".join(stream.text_stream)
            count = client.messages.count_tokens(**asked).input_tokens
            said.append(([block.text for block in whole.content if block.type == "text"], [text], count))
            assert count == whole.usage.input_tokens
            with pytest.raises(anthropic.NotFoundError):
                client.messages.create(model="unheard-of", messages=MESSAGES, max_tokens=3)

    assert said[0] == said[1]
    assert said[0][0] == said[0][1] != [""]


def test_vllms_own_benchmark(trio: Trio, stack: Stack, tmp_path: Path) -> None:
    """`vllm bench serve` finds every request completed, on the routes that it streams from."""
    for backend, path in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        argv = ["--backend", backend, "--endpoint", path, "--base-url", trio.proxy.url, "--model", trio.model]
        argv += ["--dataset-name", "random", "--random-input-len", "40", "--random-output-len", "8"]
        argv += ["--num-prompts", "6", "--max-concurrency", "3", "--ignore-eos", "--disable-tqdm"]
        argv += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", f"{backend}.json"]
        log = tmp_path / f"{backend}.log"
        child = stack.forkserver.spawn("tests.e2e.targets:bench_serve", kwargs={"argv": argv}, log=log)
        code = child.wait(180)
        assert code == 0, log.read_text()[-3000:]
        result = json.loads((tmp_path / f"{backend}.json").read_text())
        assert (result["completed"], result["total_output_tokens"]) == (6, 48)


@pytest.mark.exhaustive  # it asks by the openai client
def test_langchains_chat_openai(trio: Trio) -> None:
    """`invoke` and `stream` say the same."""
    script = Path(__file__).with_name("langchain_client.py")
    done = subprocess.run(
        [clients_python(), script, trio.proxy.url, trio.model], capture_output=True, check=False, timeout=200
    )

    assert done.returncode == 0, done.stderr.decode()[-3000:]
    said = json.loads(done.stdout)
    assert said["invoke"] == said["stream"] != ""
    assert said["usage"] > 16
