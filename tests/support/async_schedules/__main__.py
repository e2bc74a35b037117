"""`python -m tests.support.async_schedules`: many schedules of every policy, or of one mutant."""

import argparse
import sys
import time
from collections import Counter

from tests.support.async_schedules.mutants import MUTANTS
from tests.support.async_schedules.world import PLANS, World


def main() -> int:
    """Run what the command line asks for; 0 if everything is as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.async_schedules", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="per policy (default: %(default)s)")
    parser.add_argument("--mutants", action="store_true", help="count the schedules that find each mutant instead")
    options = parser.parse_args()
    wrong = 0
    if options.mutants:
        for mutant in MUTANTS:
            found = sum(bool(mutant.world(mutant.plan, seed).run()) for seed in range(options.schedules))
            wrong += not found
            print(f"{mutant.name:55} found by {found} of {options.schedules}", flush=True)
        return wrong
    for name, plan in PLANS.items():
        begun, seen = time.monotonic(), Counter[str]()
        for seed in range(options.schedules):
            world = World(plan, seed)
            if problem := world.run():
                wrong += 1
                print(f"{name}: seed {seed}: {problem}")
            seen += world.traffic.seen
        print(f"{name:40} {options.schedules} schedules, {time.monotonic() - begun:.0f} s; {dict(seen)}", flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
