"""`python -m tests.gpu.serving`: real vLLM on one CUDA device, a prefill and a decode node beside one plain server.

It needs vLLM, and no checkpoint: weights are drawn by a seed in each process. Every phase writes the JSON file again, so that what
was seen stays if a later one hangs. The exit status is 0 if nothing was wrong; times are not judged.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.usage import descendants
from tests.e2e.client import complete, difference
from tests.e2e.stack import Server, Stack, running_stack
from tests.gpu.drawn_model import LARGE, SMALL, VOCABULARY, write_model, write_plugin
from tests.support.ports import free_port

HELD: Final = re.compile(r"reserved_blocks|quarantined_blocks|kv_cache_usage")
HELD_S: Final = 20.0
KEPT: Final = re.compile(
    r"baton_(fences|pushes|transfers|verified|hidden|exposed|quarantined|reserved|integrity|cancels|pushed_b)|kv_cache_usage"
)
LOGGED: Final = re.compile(
    r"V2|model runner|attention backend|FLASH|TRITON|layer_sync|HND|graph|Mooncake|ERROR|Error|WARNING", re.IGNORECASE
)
TOKENS: Final = (128, 1000, 2000, 4000, 8000, 16000)


def serve_plain(argv: Sequence[str]) -> None:
    sys.argv = ["vllm", *argv]
    from vllm.entrypoints.launchers.api_server import entry

    entry.main()


class Run:
    """The nodes, the plain server, and what has been seen."""

    def __init__(self, stack: Stack, options: argparse.Namespace) -> None:
        self.stack, self.options = stack, options
        self.seen: dict[str, Any] = {}
        self.problems: list[str] = []  # what is wrong whatever the device's speed
        self.random = random.Random(options.seed)
        self.tokens = tuple(each for each in TOKENS if each <= (2000 if options.small else 16000))
        self.began_s = time.monotonic()

    def note(self, name: str, what: Any) -> None:
        self.seen[name] = what
        self.options.json.write_text(json.dumps(self.seen, indent=1, default=str))
        print(f"{time.monotonic() - self.began_s:6.1f} s  {name}: {json.dumps(what, default=str)[:1500]}", flush=True)

    def flags(self) -> list[str]:
        flags = [
            "--load-format",
            "dummy",
            "--dtype",
            self.options.dtype,
            "--max-model-len",
            "20000",
            "--max-num-batched-tokens",
            "8192",
        ]
        flags += ["--kv-cache-memory-bytes", str((1 if self.options.small else 6) << 30)]
        return [*flags, *([] if self.options.graphs else ["--enforce-eager"]), *self.options.vllm]

    def start(self) -> None:
        stack, cores = self.stack, sorted(os.sched_getaffinity(0))
        verify = ["--kv-verify", self.options.kv_verify]
        flags = self.flags()
        self.prefill = stack.node("prefill", *flags, *verify, *self.options.prefill, cpus=cores)
        self.decode = stack.node("decode", *flags, *verify, cpus=cores)
        port_flags = ["--model", stack.model, "--host", "127.0.0.1", "--enable-prompt-tokens-details", *flags]
        port = free_port()
        self.plain = stack._spawn("plain", "tests.gpu.serving:serve_plain", [*port_flags, "--port", str(port)], port)
        problem = ""
        try:
            self.proxy = stack.proxy([self.prefill], [self.decode], "--when-no-prefill", "decode_local")
            self.plain.wait_ready()
        except Exception as exc:  # noqa: BLE001  # the logs below say why
            problem = repr(exc)[:300]
        for server in (self.prefill, self.decode, self.plain):
            lines = [
                line[:300]
                for line in server.log.read_text(errors="replace").splitlines()
                if LOGGED.search(line) and "Route:" not in line and "api_utils" not in line
            ]
            self.note(f"log of {server.name}", lines[-25:] if not problem else server.tail(60).splitlines())
        if problem:
            raise RuntimeError(problem)
        self.note("started", round(time.monotonic() - self.began_s, 1))
        self.note("node", {key: value for key, value in self.prefill.info().items() if len(str(value)) < 200})

    def prompt(self, tokens: int) -> list[int]:
        return [self.random.randrange(10, VOCABULARY) for _ in range(tokens)]

    def counters(self) -> dict[str, dict[str, float]]:
        found = {}
        for server in (self.prefill, self.decode):
            found[server.name] = {
                name: value
                for name, value in server.metrics().items()
                if KEPT.search(name) and "bucket" not in name and value
            }
        return found

    async def ttft(
        self, client: httpx.AsyncClient, server: Server, prompt: Sequence[int], answer: int = 8
    ) -> tuple[float, list[float]]:
        """Return the time to the first event of a stream, and the times between its events, in ms."""
        began = time.perf_counter()
        body = {
            "model": self.stack.model,
            "prompt": list(prompt),
            "max_tokens": answer,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        async with client.stream("POST", server.url + "/v1/completions", json=body) as response:
            if response.status_code != 200:
                raise RuntimeError((await response.aread()).decode()[:300])
            lines = response.aiter_lines()
            times = [(time.perf_counter() - began) * 1e3 async for line in lines if line.startswith("data: {")]
        return times[0], [b - a for a, b in itertools.pairwise(times)]

    async def measure(self) -> None:
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
            for tokens in (self.tokens[0], self.tokens[-1]):  # kernels are compiled in the first ones
                for server in (self.plain, self.proxy):
                    self.note(
                        f"first {tokens} {server.name}",
                        round((await self.ttft(client, server, self.prompt(tokens)))[0], 1),
                    )
            table = {}
            for tokens in self.tokens:
                row = {}
                for server in (self.plain, self.proxy):
                    row[server.name] = [
                        round((await self.ttft(client, server, self.prompt(tokens)))[0], 1) for _ in range(5)
                    ]
                table[tokens] = row | {
                    "ratio": round(statistics.median(row["proxy"]) / statistics.median(row["plain"]), 3)
                }
            self.note("TTFT in ms, alone", table)
            self.note("counters", self.counters())
            busy = {}
            for server in (self.plain, self.proxy):
                streams = [asyncio.create_task(self.ttft(client, server, self.prompt(200), 600)) for _ in range(8)]
                await asyncio.sleep(1.0)
                firsts = [
                    round((await self.ttft(client, server, self.prompt(self.tokens[-1])))[0], 1) for _ in range(5)
                ]
                gaps = sorted(gap for _, each in await asyncio.gather(*streams) for gap in each)
                busy[server.name] = {
                    "TTFT of long prompts": firsts,
                    "between tokens of 8 streams, ms": {
                        q: round(gaps[int(q * (len(gaps) - 1))], 2) for q in (0.5, 0.9, 0.99, 1.0)
                    },
                }
            self.note("beside 8 streams", busy)
            self.note("counters beside", self.counters())

    async def compare(self) -> None:
        """Compare answers with the plain server's, all at once: equal in float32, digests in every dtype."""
        async with httpx.AsyncClient(timeout=90, limits=httpx.Limits(max_connections=None)) as client:
            prompts = [
                self.prompt(self.random.choice(self.tokens[:-1]) + self.random.randrange(100)) for _ in range(24)
            ]
            reference = [await complete(client, self.plain.url, self.stack.model, each) for each in prompts]
            differ = {}
            for name, at_once in (("one at a time", 1), ("8 at once", 8)):
                gate = asyncio.Semaphore(at_once)

                async def one(prompt: list[int]) -> Any:
                    async with gate:  # noqa: B023
                        return await complete(client, self.proxy.url, self.stack.model, prompt, cache_salt=name)  # noqa: B023

                answers = await asyncio.gather(*map(one, prompts))
                problems = [text for a, b in zip(reference, answers, strict=True) if (text := difference(a, b))]
                if self.options.dtype == "float32":  # elsewhere a plain server differs from itself
                    self.problems += problems
                differ[name] = {
                    "differ": len(problems),
                    "of": len(prompts),
                    "first": problems[:3],
                    "paths": sorted({each.path for each in answers}),
                }
            self.note("answers", differ)
            self.check_integrity("answers")

    async def storm(self) -> None:
        """Streams whose clients leave at random moments, and some that stay; then nothing may be held."""
        ended: Counter[str] = Counter()

        async def one(client: httpx.AsyncClient, leave_s: float | None) -> None:
            task = asyncio.create_task(self.ttft(client, self.proxy, self.prompt(self.random.choice(self.tokens)), 16))
            if leave_s is not None:
                await asyncio.sleep(leave_s)
                task.cancel()
            try:
                await task
                ended["stayed"] += 1
            except asyncio.CancelledError:
                ended["left"] += 1
            except Exception as exc:  # noqa: BLE001  # counted
                ended[repr(exc)[:200]] += 1

        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
            until = time.monotonic() + (4 if self.options.small else 20)
            waiting: set[asyncio.Task[None]] = set()
            while time.monotonic() < until:
                leave = self.random.uniform(0, 1.0) if self.random.random() < 0.8 else None
                waiting.add(asyncio.create_task(one(client, leave)))
                await asyncio.sleep(self.random.uniform(0, 0.08))
                if len(waiting) > 40:
                    _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            _, unanswered = await asyncio.wait(waiting, timeout=60)
        self.note("storm", ended)
        if failed := ended.keys() - {"stayed", "left"}:
            self.problems += failed
        if unanswered:
            self.problems.append(f"{len(unanswered)} streams without an end after 60 s")
        self.note("held after", await self.held(self.prefill, self.decode))
        self.check_integrity("storm")

    def check_integrity(self, phase: str) -> None:
        """Note what the nodes' own checks found, and how many transfers had other KV on D than on P."""
        pages, counters = {each.name: each.integrity() for each in (self.prefill, self.decode)}, self.counters()
        self.note(f"integrity after the {phase}", pages)
        self.note(f"counters after the {phase}", counters)
        self.problems += [f"{name}: {page['findings']}" for name, page in pages.items() if not page["ok"]]
        verified = {name: value for name, value in counters["decode"].items() if "verified_transfers_total{" in name}
        self.problems += [f"{name} {value:g}" for name, value in verified.items() if 'result="ok"' not in name]
        if self.options.kv_verify == "full" and not verified:
            self.problems.append("no transfer was verified")

    async def held(self, *servers: Server) -> dict[str, Any]:
        """Wait until no node holds blocks of a transfer; return how long that took, and what is held."""
        began = time.monotonic()
        while True:
            held = {
                f"{server.name}: {name}": value
                for server in servers
                for name, value in server.metrics().items()
                if HELD.search(name) and value
            }
            if not held or time.monotonic() > began + HELD_S:
                self.problems += [f"still held: {name} {value:g}" for name, value in held.items()]
                return {"seconds": round(time.monotonic() - began, 2), "held": held}
            await asyncio.sleep(0.1)

    async def kill(self) -> None:
        """Kill the prefill node in the middle of long prompts: every request is answered, and D holds nothing afterwards."""
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
            tasks = [
                asyncio.create_task(complete(client, self.proxy.url, self.stack.model, self.prompt(self.tokens[-1])))
                for _ in range(6)
            ]
            await asyncio.sleep(0.3)
            assert self.prefill.child is not None
            for pid in [*descendants(self.prefill.child.pid), self.prefill.child.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            answers = await asyncio.gather(*tasks, return_exceptions=True)
        self.note(
            "answers to prompts in the killed node",
            [each.path if not isinstance(each, BaseException) else repr(each)[:200] for each in answers],
        )
        self.problems += [repr(each) for each in answers if isinstance(each, BaseException)]
        self.note("held on D after the kill", await self.held(self.decode))
        self.note(
            "fences of D", {name: value for name, value in self.decode.metrics().items() if "fence" in name and value}
        )


def main() -> int:
    made = argparse.ArgumentParser(prog="python -m tests.gpu.serving", description=__doc__)
    made.add_argument("--json", type=Path, default=Path("build/gpu-serving.json"))
    made.add_argument("--small", action="store_true", help="a small model, for a rehearsal on a CPU")
    made.add_argument("--dtype", default="bfloat16")
    made.add_argument("--graphs", action="store_true", help="without --enforce-eager")
    made.add_argument("--kv-verify", default="full")
    made.add_argument("--phases", default="measure,compare,storm,kill")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--seconds", type=float, default=200.0)
    made.add_argument("--prefill", default="", help="further flags of the prefill node")
    made.add_argument("--vllm", default="", help="further flags of all servers")
    options = made.parse_args()
    options.prefill, options.vllm = options.prefill.split(), options.vllm.split()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="baton-serving-") as path:
        folder = Path(path)
        model = write_model(folder / "model", SMALL if options.small else LARGE, options.dtype)
        places = [str(write_plugin(folder / "plugin")), str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {"PYTHONPATH": ":".join(places), "VLLM_LOGGING_LEVEL": "INFO"}
        if options.graphs:
            env["TORCHDYNAMO_DISABLE"] = "0"
        with running_stack(folder, preload="", env=env) as stack:
            stack.model = str(model)
            run = Run(stack, options)
            try:
                run.start()
                for phase in options.phases.split(","):
                    asyncio.run(
                        asyncio.wait_for(
                            getattr(run, phase)(), max(5.0, options.seconds - (time.monotonic() - run.began_s))
                        )
                    )
            except BaseException as exc:  # noqa: BLE001  # what was seen is written
                run.note("ended by", repr(exc)[:1000])
                for server in stack.servers:
                    run.note(f"end of {server.name}'s log", server.tail(30).splitlines())
                return 1
            run.note("problems", run.problems)
            return 1 if run.problems else 0


if __name__ == "__main__":
    sys.exit(main())
