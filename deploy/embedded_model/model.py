"""The decoder both models share: Qwen2 with grouped queries and tied embeddings, and how it is written to disk."""

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from baton.deploy.embedded_model import tokenizer as tokens
from baton.deploy.embedded_model.corpus import BEGIN, END


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of one decoder."""

    layers: int
    hidden: int
    mlp: int
    query_heads: int
    kv_heads: int
    context_tokens: int


def new_decoder(shape: Shape, tokenizer: Tokenizer, *, seed: int) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    begin, end, padding = (tokenizer.token_to_id(token) for token in (BEGIN, END, tokens.PADDING))
    config = Qwen2Config(
        vocab_size=tokens.VOCABULARY_SIZE,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.query_heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context_tokens,
        tie_word_embeddings=True,
        bos_token_id=begin,
        eos_token_id=end,
    )
    decoder = Qwen2ForCausalLM(config)
    decoder.generation_config = GenerationConfig(bos_token_id=begin, eos_token_id=end, pad_token_id=padding)
    return decoder


def write(decoder: Qwen2ForCausalLM, tokenizer: Tokenizer, directory: Path) -> None:
    decoder.bfloat16().save_pretrained(directory)
    tokens.write(tokenizer, directory, decoder.config.max_position_embeddings)
