"""`python -m tests.fuzz.api_schema --cases 2000`: schemathesis against a proxy in front of mock engines.

The document is the proxy's own, with vLLM's schemas as a node gives them (`vllm_openapi.json`, of vLLM 0.32). Requests are generated
from it, good and bad. A fault of the proxy's (500, 502, 504) or a request without an answer is a failure.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import httpx

from baton.proxy.openapi.merge import merged
from baton.proxy.passthrough.routes import ROUTES
from baton.proxy.request.endpoints import DATA_ROUTES
from tests.fuzz.raw_http.stage import Stage, stage
from tests.support.clients_venv import clients_python

ENGINES: Final = Path(__file__).with_name("vllm_openapi.json")
_CASES: Final = re.compile(r"(\d+) generated")
_SERVED: Final = [
    *(("POST", path) for path in sorted(DATA_ROUTES)),
    *((route.method, route.template) for route in ROUTES),
]
_TIMEOUT_S: Final = 1800
_CONFIG: Final = """
[checks]
enabled = false
[checks.not_a_server_error]
enabled = true
expected-statuses = ["2xx", "4xx", "501", "503"]
"""


def document(ours: dict[str, Any]) -> dict[str, Any]:
    """Return the proxy's document as it is in front of a vLLM."""
    return merged(ours, json.loads(ENGINES.read_text()), _SERVED)


def operations(described: dict[str, Any]) -> int:
    """Count operations."""
    return sum(len(item) for item in described["paths"].values())


def command(folder: Path, url: str, *, each: int, seed: int) -> list[str]:
    """Return schemathesis' command line, with so many cases for each operation."""
    script = "from schemathesis.cli import schemathesis; schemathesis()"
    run = [str(clients_python()), "-c", script, "--config-file", str(folder / "schemathesis.toml"), "run"]
    options = ["--url", url, "--phases", "fuzzing", "--mode", "all", "--max-examples", str(each), "--seed", str(seed)]
    options += ["--request-timeout", "15", "--no-color", "--suppress-health-check", "all"]
    return [*run, str(folder / "openapi.json"), *options]


async def run(made: Stage, folder: Path, cases: int, seed: int) -> tuple[int, list[str], str]:
    """Return how many cases there were, what was wrong, and what schemathesis said."""
    url = f"http://127.0.0.1:{made.port}"
    async with httpx.AsyncClient() as http:
        described = document((await http.get(f"{url}/openapi.json")).json())
    (folder / "openapi.json").write_text(json.dumps(described))
    (folder / "schemathesis.toml").write_text(_CONFIG)
    each = -(-cases * 4 // (3 * operations(described))) + 5  # some have little that can be varied
    done = await asyncio.to_thread(
        subprocess.run, command(folder, url, each=each, seed=seed), capture_output=True, check=False, timeout=_TIMEOUT_S
    )
    said = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
    found = max(map(int, _CASES.findall(said)), default=0)
    problems = [f"schemathesis ended with {done.returncode}"] if done.returncode else []
    problems += [f"only {found} cases were generated"] if found < cases else []
    problems += made.faults() if made.alive else [f"the proxy ended with {made.process.returncode}"]
    return found, problems, said


async def _main(cases: int, seed: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with stage(folder) as made:
            found, problems, said = await run(made, folder, cases, seed)
    print(said[-6000:])
    print(f"{found} cases, {len(problems)} problems", *problems, sep="\n")
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    return asyncio.run(_main(arguments.cases, arguments.seed))


if __name__ == "__main__":
    sys.exit(main())
