"""The servers that are compared: one vLLM, and a prefill node, a decode node and a proxy with the same settings."""

from typing import Final

from tests.e2e.stack import FLOAT32, Server, Stack

TOOLS: Final = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
STORES: Final[dict[str, str | None]] = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}


class ParityTrio:
    def __init__(self, stack: Stack) -> None:
        flags = (*FLOAT32, *TOOLS)
        self.prefill = stack.node("prefill", *flags, name="parity-prefill", env=STORES)
        self.decode = stack.node("decode", *flags, name="parity-decode", env=STORES)
        self.plain: Server = stack.plain(*flags, name="parity-plain", env=STORES)
        self.proxy = stack.proxy([self.prefill], [self.decode], name="parity-proxy")
        self.plain.wait_ready()
        self.model = stack.model
