"""What both relays share: their arguments, and the two bodies of a request."""

import argparse
from typing import Any, Final

import uvicorn

ASK_OF_PREFILL: Final = {"do_remote_decode": True, "do_remote_prefill": False}
PATHS: Final = ("/v1/completions", "/v1/chat/completions")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prefill", required=True)
    parser.add_argument("--decode", required=True)
    return parser.parse_args()


def prefill_body(body: dict[str, Any]) -> dict[str, Any]:
    """Return the prefill leg's body, as vLLM's example proxies make it."""
    return {**body, "kv_transfer_params": ASK_OF_PREFILL, "stream": False, "max_tokens": 1}


def run(app: Any, port: int) -> None:
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False, backlog=4096)
