"""The embedded model as committed: small enough, shaped as the tests need it, and the listed prompts that go with it."""

import json
from typing import Any

import jinja2

from baton.deploy.embedded_model import WEIGHTS, corpus, tokenizer
from tests.support import listed_prompts

BF16_BYTES = 2


def test_200_distinct_prompts_span_1_to_3500_tokens_and_every_magnitude() -> None:
    """Distinct ones keep a stale block from passing for the right one; each with its continuation fits the context."""
    lengths = [len(ids) for ids in listed_prompts.prompts()]

    assert len({tuple(ids) for ids in listed_prompts.prompts()}) == 200
    assert (min(lengths), max(lengths)) == (1, 3500)
    assert max(lengths) + 24 <= tokenizer.CONTEXT_TOKENS
    assert all(sum(low <= length < 10 * low for length in lengths) >= 20 for low in (1, 10, 100, 1000))


def test_the_tokenizer_belongs_to_the_corpus() -> None:
    """A changed corpus needs a new training run: its offsets and its tokens would no longer fit.

    A client may send a prompt as text or as tokens, and means the same request.
    """
    encoded = tokenizer.load().encode_batch(listed_prompts.texts())

    assert [encoding.ids for encoding in encoded] == listed_prompts.prompts()
    assert tokenizer.build().get_vocab() == tokenizer.load().get_vocab()


def test_the_models_shape_is_what_transfers_need() -> None:
    """Layers to overlap with, KV heads to split, and 2 KiB of KV a token: less would be too small to observe.

    Its files are below 4 MB, as everybody who clones the repository downloads them.
    """
    files = [path for path in WEIGHTS.parent.rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    config: Any = json.loads((WEIGHTS / "config.json").read_text())
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]

    assert sum(path.stat().st_size for path in files) < 4_000_000
    assert config["num_hidden_layers"] >= 8
    assert 2 <= config["num_key_value_heads"] < config["num_attention_heads"]
    assert config["max_position_embeddings"] == tokenizer.CONTEXT_TOKENS
    assert 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim * BF16_BYTES >= 2048


def test_chat_template_renders_as_the_corpus_was_written() -> None:
    """The model answers a chat request only in the form in which it learned conversations."""
    turns = [("Hello!", "Hello, and welcome."), ("Who are you?", "I am the clerk.")]
    messages = [{"role": "system", "content": "Be brief."}]
    for question, answer in turns:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    template = jinja2.Template((WEIGHTS / "chat_template.jinja").read_text())
    special = {"bos_token": corpus.BEGIN, "eos_token": corpus.END}

    whole = template.render(messages=messages, **special)
    open_ended = template.render(messages=messages[:2], add_generation_prompt=True, **special)

    assert whole == corpus.chat(*turns, system="Be brief.")
    assert open_ended == corpus.chat(("Hello!", ""), system="Be brief.").removesuffix(corpus.END)
