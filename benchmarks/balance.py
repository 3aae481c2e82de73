"""How even are plans, and how quickly are they made?

Usage: python benchmarks/balance.py            everything; takes some minutes
       python benchmarks/balance.py --quick    fewer and smaller minibatches, in less than a minute

Prints figures measured in this one run, beside those of plain methods and of peers where they are installed
(`pip install 'odcsim[bench]'`). A requirement that does not hold is a line that says MISSED, and makes the exit code 1.
What is measured, and what is required of it: benchmarks/balancing/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from balancing import dynamic, exact, million, partition, policies


def sections(*, quick: bool) -> Iterator[str]:
    """Blocks of lines, as they are measured."""
    yield from partition.sections(quick=quick)
    yield from policies.sections(quick=quick)
    yield from exact.sections(quick=quick)
    if not quick:
        yield from million.sections()
        yield from dynamic.sections()


def main() -> None:
    """Print every section."""
    parser = argparse.ArgumentParser(description="How even are plans, and how quickly are they made?")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller minibatches; takes less than a minute")
    missed = 0
    for section in sections(quick=parser.parse_args().quick):
        print(section, end="\n\n", flush=True)
        missed += section.count("MISSED")
    if missed:
        raise SystemExit(f"{missed} requirements MISSED")


if __name__ == "__main__":
    main()
