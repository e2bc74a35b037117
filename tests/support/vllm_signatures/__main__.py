"""Writes the facts of one version."""

import sys
from importlib.util import find_spec
from pathlib import Path

from tests.support.vllm_signatures.facts import read, write


def installed() -> Path:
    """The folder that the installed vLLM is in."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:] or [installed()]):
        facts = read(folder)
        print(f"{write(facts)}: {len(facts.hooks)} hooks, {len(facts.names)} names")
