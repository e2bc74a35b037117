"""The tokenizer of the embedded model: a byte-level BPE over its own text, and the chat template.

Spans of the tokenised text are what `train.py` learns from and what the tests' `listed_prompts.py` lists.
Nothing here needs torch; only `write` needs transformers, and imports it when called.
"""

from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from baton.deploy.embedded_model import WEIGHTS
from baton.deploy.embedded_model.corpus import ASSISTANT, BEGIN, END, SYSTEM, USER, documents

VOCABULARY_SIZE = 1024
CONTEXT_TOKENS = 4096
PADDING = "<|pad|>"
SPECIAL_TOKENS = (PADDING, BEGIN, END, SYSTEM, USER, ASSISTANT)

# transformers loads a Qwen2 model's tokenizer with Qwen2's own splitting, whatever tokenizer.json says, so it is ours
# too
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(), trainer)
    return tokenizer


def write(tokenizer: Tokenizer, directory: Path, context_tokens: int = CONTEXT_TOKENS) -> None:
    from transformers import Qwen2Tokenizer  # here, as it keeps this module light for those that need no transformers

    Qwen2Tokenizer(
        tokenizer_object=tokenizer,
        unk_token=PADDING,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PADDING,
        chat_template=CHAT_TEMPLATE,
        model_max_length=context_tokens,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(directory)


@cache
def load(directory: Path = WEIGHTS) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def encode_corpus(tokenizer: Tokenizer) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(documents())]
