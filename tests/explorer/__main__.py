"""`python -m tests.explorer`: explore the real machines, or show how each mutant is found."""

import argparse
import sys

from tests.explorer.explore import Result, explore
from tests.explorer.mutants import MUTANTS
from tests.explorer.suite import SUITES
from tests.explorer.words import story
from tests.explorer.world import World


def main() -> int:
    """Run what the command line asks for; 0 if everything is as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.explorer", description=__doc__)
    parser.add_argument("--suite", choices=SUITES, default="default", help="how far to go (default: %(default)s)")
    parser.add_argument("--scope", help="explore only this scope of the suite")
    parser.add_argument("--mutants", action="store_true", help="show the shortest trace to each mutant instead")
    options = parser.parse_args()
    return show_mutants() if options.mutants else show_suite(options.suite, options.scope)


def show_suite(suite: str, only: str | None) -> int:
    """Explore the real machines in every scope of a suite."""
    print(f"{'scope':22} {'states':>10} {'steps':>11} {'depth':>6} {'P x D':>10} {'CPU s':>8}  violations")
    states, seconds, wrong = 0, 0.0, 0
    for name, scope in SUITES[suite].items():
        if only in (None, name):
            result = explore(World(scope))
            states, seconds, wrong = states + result.states, seconds + result.seconds, wrong + bool(result.violation)
            print(_row(name, result), flush=True)
            if result.violation:
                print(story(result.trace, result.violation))
    print(f"{'all':22} {states:10,} {'':11} {'':6} {'':10} {seconds:8.1f}  {wrong}")
    return 1 if wrong else 0


def show_mutants() -> int:
    """Find every mutant and tell the way to it."""
    missed = 0
    for mutant in MUTANTS:
        result = explore(World(mutant.scope, mutant.producer, mutant.consumer))
        missed += not result.violation.startswith(mutant.breaks)
        print(f"\n{mutant.name}: {len(result.trace)} steps, {result.states:,} states, {result.seconds:.1f} s")
        print(story(result.trace, result.violation or "NOT FOUND"))
    return 1 if missed else 0


def _row(name: str, result: Result) -> str:
    p, d = result.local_states
    return (
        f"{name:22} {result.states:10,} {result.transitions:11,} {result.depth:6} {f'{p} x {d}':>10}"
        f" {result.seconds:8.1f}  {result.violation or 0}"
    )


if __name__ == "__main__":
    sys.exit(main())
