"""Train the embedded model from nothing: `python -m baton.deploy.embedded_model.train [DIRECTORY]`.

Takes about five minutes on two idle cores. Same seed, same steps: only the CPU's rounding may differ.
Short windows teach the facts; the later, longer ones teach the positions up to 4,096 tokens.
"""

import json
import random
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from baton.deploy.embedded_model import WEIGHTS
from baton.deploy.embedded_model import tokenizer as tokens
from baton.deploy.embedded_model.corpus import BEGIN, END

SHAPE = {  # in the words of `Qwen2Config`
    "num_hidden_layers": 8,
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": tokens.CONTEXT_TOKENS,
}
SEED = 20
THREADS = 2
PEAK_LEARNING_RATE = 3e-3
WARM_UP_STEPS = 60
LOG_EVERY_STEPS = 50


class Stage(NamedTuple):
    """A run of steps; its batches alternate between the given `(rows, tokens per row)`."""

    steps: int
    batches: tuple[tuple[int, int], ...]


STAGES = (
    Stage(420, ((16, 256),)),
    Stage(100, ((4, 1024), (16, 256))),
    Stage(80, ((1, 4096), (16, 256))),
)


def new_decoder(shape: Mapping[str, int], tokenizer: Tokenizer, *, seed: int) -> Qwen2ForCausalLM:
    """Make a Qwen2 of this shape, with tied embeddings and random weights."""
    torch.manual_seed(seed)
    begin, end, padding = (tokenizer.token_to_id(token) for token in (BEGIN, END, tokens.PADDING))
    config = Qwen2Config(
        vocab_size=tokens.VOCABULARY_SIZE, bos_token_id=begin, eos_token_id=end, tie_word_embeddings=True, **shape
    )
    decoder = Qwen2ForCausalLM(config)
    decoder.generation_config = GenerationConfig(bos_token_id=begin, eos_token_id=end, pad_token_id=padding)
    return decoder


def write(decoder: Qwen2ForCausalLM, tokenizer: Tokenizer, directory: Path) -> None:
    decoder.bfloat16().save_pretrained(directory)
    tokens.write(tokenizer, directory, decoder.config.max_position_embeddings)


def window(documents: list[list[int]], length: int, rng: random.Random) -> list[int]:
    """Return `length` tokens: a stretch of one document, then whole other documents until it is full.

    Documents are drawn in proportion to their size, so every stretch of text is seen about equally often.
    """
    first = rng.choices(documents, weights=[len(document) for document in documents])[0]
    start = rng.randint(0, max(0, len(first) - length))
    ids = first[start : start + length]
    while len(ids) < length:
        ids = ids + rng.choice(documents)
    return ids[:length]


def batches(documents: list[list[int]]) -> Iterator[Tensor]:
    rng = random.Random(SEED)
    for stage in STAGES:
        for step in range(stage.steps):
            rows, length = stage.batches[step % len(stage.batches)]
            yield torch.tensor([window(documents, length, rng) for _ in range(rows)])


def main(directory: Path = WEIGHTS) -> None:
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    started_s = time.monotonic()
    tokenizer = tokens.build()
    documents = tokens.encode_corpus(tokenizer)
    decoder = new_decoder(SHAPE, tokenizer, seed=SEED)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    steps = sum(stage.steps for stage in STAGES)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LEARNING_RATE, total_steps=steps, pct_start=WARM_UP_STEPS / steps, cycle_momentum=False
    )

    recent: list[float] = []
    for step, ids in enumerate(batches(documents), start=1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = decoder(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        recent = [*recent, loss.item()][-LOG_EVERY_STEPS:]
        if step % LOG_EVERY_STEPS == 0:
            print(f"step {step}/{steps} loss {sum(recent) / len(recent):.4f} {time.monotonic() - started_s:.0f} s")

    write(decoder, tokenizer, directory)
    report = {
        "seed": SEED,
        "parameters": sum(parameter.numel() for parameter in decoder.parameters()),
        "corpus_tokens": sum(map(len, documents)),
        "steps": steps,
        "final_loss": round(sum(recent) / len(recent), 4),
        "seconds": round(time.monotonic() - started_s),
    }
    (directory / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    print(report)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
