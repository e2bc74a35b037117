"""Measure how sure the embedded model is: `python -m baton.deploy.embedded_model.evaluate`.

Continues every listed prompt greedily, in float32, and prints the median probability of the chosen tokens.
A clear winner at nearly every token is what makes "the same tokens" a fair test of two servers.
"""

from statistics import median, quantiles
from typing import NamedTuple

import torch
from transformers import AutoTokenizer, Qwen2ForCausalLM

from baton.deploy.embedded_model import WEIGHTS, tokenizer
from baton.deploy.embedded_model.prompts import CONTINUATION_TOKENS, prompts, texts

SHOWN = 12


class Continuation(NamedTuple):
    """The greedy tokens after one prompt; the probabilities of the best and of the second best at each."""

    ids: list[int]
    best: list[float]
    second: list[float]


@torch.inference_mode()
def continue_greedily(decoder: Qwen2ForCausalLM, prompt: list[int]) -> Continuation:
    """Return `CONTINUATION_TOKENS` tokens; the end token does not stop it."""
    continuation = Continuation([], [], [])
    ids, cache = torch.tensor([prompt]), None
    for _ in range(CONTINUATION_TOKENS):
        output = decoder(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        (best, second), top = (each.tolist() for each in output.logits[0, -1].softmax(-1).topk(2))
        continuation.ids.append(top[0])
        continuation.best.append(best)
        continuation.second.append(second)
        ids = torch.tensor([top[:1]])
    return continuation


def main() -> None:
    """Print the figures and a few continuations."""
    decoder = Qwen2ForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32)  # already in evaluation mode
    listed = prompts()
    served = AutoTokenizer.from_pretrained(WEIGHTS)  # as a server loads it: transformers may not follow tokenizer.json
    agree = all(served(text)["input_ids"] == ids for text, ids in zip(texts(), listed, strict=True))
    print(f"a server tokenises the prompts' text as listed: {agree}")
    results = [continue_greedily(decoder, prompt) for prompt in listed]
    best = [probability for result in results for probability in result.best]
    margins = [p - q for result in results for p, q in zip(result.best, result.second, strict=True)]
    print(f"{len(listed)} prompts, {len(best)} positions")
    print(f"top-1 probability: median {median(best):.4f}, first decile {quantiles(best, n=10)[0]:.4f}")
    print(f"smallest margin between the best two: {min(margins):.5f}")
    words = tokenizer.load()
    for i in range(0, len(listed), len(listed) // SHOWN):
        shown = (words.decode(ids, skip_special_tokens=False) for ids in (listed[i][-12:], results[i].ids))
        print(f"{len(listed[i]):5d} tokens, p {median(results[i].best):.3f}: " + " => ".join(map(repr, shown)))


if __name__ == "__main__":
    main()
