"""Which methods of speculative decoding this machine cannot run: refused before vLLM begins, which would say it in a traceback.

What the hand-off does not cover is the connector's to say (`kv_connector/vllm_compat/speculative.py`).
"""

import json
from collections.abc import Sequence
from importlib.util import find_spec

from baton.node.errors import StartRefusedError
from baton.node.startup.flags import value_of

_FLAGS = ("--speculative-config", "-sc")


def refuse_unrunnable(arguments: Sequence[str], device: str) -> None:
    """Refuse a method for which this machine lacks something; the message says what to change."""
    method = method_of(arguments)
    if method == "suffix" and find_spec("arctic_inference") is None:
        raise StartRefusedError(
            "speculative decoding with method 'suffix' needs the package arctic-inference: install it, or use 'ngram'"
        )
    if method == "ngram_gpu" and device == "cpu":
        raise StartRefusedError("speculative decoding with method 'ngram_gpu' needs an accelerator: use 'ngram'")


def method_of(arguments: Sequence[str]) -> str:
    """Return the method that vLLM's flags name; "" if there is none, or one that vLLM will find out itself."""
    if method := value_of(arguments, "--spec-method"):
        return method
    text = value_of(arguments, *_FLAGS)
    if text is None:
        return ""
    if any(argument.replace("_", "-").startswith(f"{_FLAGS[0]}.method") for argument in arguments):
        return _dotted(arguments)
    try:
        settings = json.loads(text)
    except ValueError:
        return ""  # vLLM will say it
    method = settings.get("method") if isinstance(settings, dict) else None
    return method if isinstance(method, str) else ""


def _dotted(arguments: Sequence[str]) -> str:
    """`--speculative-config.method suffix`, or with `=`."""
    name = f"{_FLAGS[0]}.method"
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, has_value, value = argument.partition("=")
        if flag.replace("_", "-") == name:
            return value if has_value else following
    return ""
