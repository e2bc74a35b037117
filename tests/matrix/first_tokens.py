"""`python -m tests.matrix.first_tokens`: time to the first token of prompts with images over both legs ÷ one plain server, beside text as long.

Every prompt is a new one, and its images are: nothing is cached. Run it on a machine that does nothing else.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx

from tests.e2e.stack import ANSWER_TIMEOUT_S, Server, running_stack
from tests.matrix.media import CHAT, Question, ask, body_of, node_of, plain_of

MODEL: Final = "qwen2-vl"
ITEMS, REPEATS = 8, 4
_NUMBERS: Final = count(1000)


def body_like(repeats: int, items: int) -> dict[str, Any]:
    """Return a request whose prompt begins like no other."""
    numbers = [next(_NUMBERS) for _ in range(items)]
    body = body_of(MODEL, Question(numbers, repeats), max_tokens=4)
    body["messages"][0]["content"] = f"{next(_NUMBERS)}: be brief."
    return body


def first_token_s(server: Server, body: dict[str, Any]) -> float:
    began = time.perf_counter()
    with httpx.stream("POST", server.url + CHAT, json={**body, "stream": True}, timeout=ANSWER_TIMEOUT_S) as response:
        for line in response.iter_lines():
            if line.startswith("data: {") and any(each.get("token_ids") for each in json.loads(line[6:])["choices"]):
                return time.perf_counter() - began
    raise RuntimeError(f"{server.name} has sent no token: {response.status_code}")


def main() -> None:
    """Measure both kinds of prompts on both, in turns, and print medians and ratios."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.first_tokens")
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as made, running_stack(Path(made)) as stack:
        plain = plain_of(stack, MODEL)
        plain.wait_ready()
        prefill, decode = (node_of(stack, role, MODEL, runs=Path(made) / role) for role in ("prefill", "decode"))
        servers = {"one plain server": plain, "both legs": stack.proxy([prefill], [decode])}
        tokens = ask(plain, body_like(REPEATS, ITEMS)).prompt_tokens
        each = (ask(plain, body_like(30, 0)).prompt_tokens - ask(plain, body_like(10, 0)).prompt_tokens) / 20
        repeats = round((tokens - ask(plain, body_like(0, 0)).prompt_tokens) / each)
        for kind, shape in {"images": (REPEATS, ITEMS), "text": (repeats, 0)}.items():
            length = ask(plain, body_like(*shape)).prompt_tokens
            taken: dict[str, list[float]] = {name: [] for name in servers}
            for number in range(rounds + 3):
                for name, server in servers.items():
                    took_s = first_token_s(server, body_like(*shape))
                    taken[name] += [took_s] if number >= 3 else []
            one, both = (statistics.median(taken[name]) for name in servers)
            print(
                f"{kind}, {length} tokens: one plain server {one * 1000:.1f} ms, both legs {both * 1000:.1f} ms, ratio {both / one:.2f}"
            )
        print(
            f"medians of {rounds}; load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores; encoder on D ran {decode_runs(Path(made))} times"
        )


def decode_runs(folder: Path) -> int:
    file = folder / "decode"
    return len(file.read_text().splitlines()) if file.exists() else 0


if __name__ == "__main__":
    main()
