"""`python -m tests.fuzz.raw_http --scripts 20000 --seed 1`: hostile clients, as many as wanted.

It fails if the proxy ends, if an answer is a fault of the proxy's, if a connection is neither answered nor closed, if
good requests are not served afterwards, or if descriptors are lost.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.raw_http.run import Outcome, run
from tests.fuzz.raw_http.stage import stage


async def _run(scripts: int, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        async with stage(Path(folder)) as made:
            began_s, memory = time.monotonic(), made.resident_bytes()
            outcome = await run(made, scripts, seed)
            took_s = time.monotonic() - began_s
            grown = (made.resident_bytes() - memory) / 1e6 if made.alive else 0.0
    print(f"{outcome.scripts} scripts in {took_s:.1f} s, seed {seed}; memory grew by {grown:.1f} MB")
    print("kinds:", dict(sorted(outcome.kinds.items())))
    print("statuses:", dict(sorted(outcome.statuses.items())), "closed without an answer:", outcome.closed)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    outcome = asyncio.run(_run(arguments.scripts, arguments.seed))
    for problem in outcome.problems[:50]:
        print("PROBLEM:", problem)
    print(f"{len(outcome.problems)} problems")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
