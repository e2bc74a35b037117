"""What, beside the engine, decides how vLLM's API server streams a token: equal on both nodes, or the decode node streams all of them. Pure."""

from hashlib import blake2b
from typing import Any, Final

_ARGUMENTS: Final = (
    "served_model_name",
    "chat_template",
    "chat_template_content_format",
    "default_chat_template_kwargs",
    "trust_request_chat_template",
    "response_role",
    "return_tokens_as_token_ids",
    "enable_auto_tool_choice",
    "exclude_tools_when_tool_choice_none",
    "tool_call_parser",
    "tool_parser_plugin",
    "tool_strict_level",
    "reasoning_parser",
    "enable_force_include_usage",
    "enable_prompt_tokens_details",
    "max_logprobs",
    "stream_interval",
)


def frontend_digest(arguments: Any) -> str:
    """Return a digest of an API server's arguments; one that a version of vLLM does not have counts as unset."""
    said = [getattr(arguments, name, None) for name in _ARGUMENTS]
    return blake2b(repr(said).encode(), digest_size=8).hexdigest()
