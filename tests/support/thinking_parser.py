"""A reasoning parser for the embedded model, whose vocabulary has no `</think>`: other special tokens stand for it."""

from typing import Final

from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser

PLUGIN: Final = ("--reasoning-parser-plugin", __file__, "--reasoning-parser", "embedded")
END_OF_THOUGHT: Final = "0"  # id of the token


@ReasoningParserManager.register_module("embedded")
class ThinkingParser(DeepSeekR1ReasoningParser):
    """An answer begins with thoughts, up to a special token."""

    @property
    def start_token(self) -> str:
        return "<|system|>"

    @property
    def end_token(self) -> str:
        return "<|pad|>"
