"""`python -m tests.site`: build the docs site, and complain of every link that leads nowhere."""

import argparse
import sys
from pathlib import Path

from tests.site.build import build

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.site", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", metavar="DIR", help="default: build/site")
    out = parser.parse_args().out
    if wrong := build(ROOT, out):
        print("\n".join(wrong), file=sys.stderr)
        return 1
    print(f"{out / 'index.html'}: {len(list(out.rglob('*.html')))} pages, readable without a server or a network")
    return 0


if __name__ == "__main__":
    sys.exit(main())
