"""`python -m tests.explorer`: explore the real machines, then find every mutant."""

import argparse
import sys
from collections.abc import Mapping

from tests.explorer.exhaust import Result, exhaust
from tests.explorer.mutants import MUTANTS, find
from tests.explorer.mutants_both_ways import BOTH_WAYS
from tests.explorer.scene import Scene
from tests.explorer.sides import Sides
from tests.explorer.suite import SUITES
from tests.explorer.words import story

HEADER = f"{'':40} {'states':>10} {'frontier':>9} {'steps':>11} {'P x D':>12} {'CPU s':>8}  violations"


def main() -> int:
    """Run what the command line asks for; 0 if everything is as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.explorer", description=__doc__)
    parser.add_argument("--suite", choices=SUITES, default="full", help="how far to go (default: %(default)s)")
    parser.add_argument("--only", help="explore only the scene of this name, and no mutants")
    parser.add_argument("--mutants", action="store_true", help="tell a way to each mutant, and do no more")
    options = parser.parse_args()
    wrong = 0 if options.mutants else show_suite(SUITES[options.suite], options.only)
    missed = 0 if options.only else show_mutants(tell=options.mutants)
    return 1 if wrong or missed else 0


def show_suite(scenes: Mapping[str, Scene], only: str | None) -> int:
    """Explore the real machines in every scene of a suite; return how many violations there are."""
    print(HEADER)
    wrong = 0
    for name, scene in scenes.items():
        if only in (None, name):
            result = exhaust(Sides(scene))
            _show(name, result)
            wrong += bool(result.violation)
    return wrong


def show_mutants(*, tell: bool) -> int:
    """Find every mutant; return how many were not."""
    missed, seconds, states = 0, 0.0, 0
    mutants = MUTANTS + BOTH_WAYS
    for mutant in mutants:
        result = find(mutant)
        seconds, states = seconds + result.seconds, states + result.states
        found = result.violation.startswith(mutant.breaks)
        missed += not found
        if tell or not found:
            print(f"\n{mutant.name}: {len(result.trace)} steps, {result.states:,} states, {result.seconds:.1f} s")
            print(story(result.trace, result.violation or "NOT FOUND"))
    print(f"mutants found: {len(mutants) - missed} of {len(mutants)} ({states:,} states, {seconds:.1f} CPU s)")
    return missed


def _show(name: str, result: Result) -> None:
    p, d = result.local_states
    print(
        f"{name:40} {result.states:10,} {result.frontier:9} {result.transitions:11,} {f'{p} x {d}':>12}"
        f" {result.seconds:8.1f}  {result.violation or 0}",
        flush=True,
    )
    if result.violation:
        print(story(result.trace, result.violation))


if __name__ == "__main__":
    sys.exit(main())
