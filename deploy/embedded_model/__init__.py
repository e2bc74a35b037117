"""A tiny model that ships with Baton, so that tests and demonstrations need no download and no GPU.

Its pieces, in the order in which they are made:

- `town.py`, `corpus.py`: the text, the log and the kitchen of a made-up harbour town;
- `tokenizer.py`: a byte-level BPE of 1,024 tokens and the chat template;
- `train.py`: memorises the text with a small grouped-query decoder and writes `weights/`.

The model knows its text by heart, so that greedy decoding has a clear winner at nearly every token: two servers
that compute the same KV cache give the same text, and rounding alone does not flip a token.

This module imports nothing heavy.
"""

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"
"""The committed model, in Hugging Face format: pass it to `vllm serve`."""
