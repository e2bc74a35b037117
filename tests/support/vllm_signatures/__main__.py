"""Writes the facts of one version."""

import sys
from pathlib import Path

from tests.support.vllm_signatures.facts import installed, read, write

if __name__ == "__main__":
    for folder in [Path(each) for each in sys.argv[1:]] or [installed()]:
        facts = read(folder)
        print(f"{write(facts)}: {len(facts.hooks)} hooks, {len(facts.names)} names")
