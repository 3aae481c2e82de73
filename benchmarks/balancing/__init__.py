"""The parts of benchmarks/balance.py.

    settings.py   what is measured: traces, sizes, seeds, the cost of a sample
    reference.py  plain methods to compare with, and peers where they are installed
    partition.py  splitting samples into parts, by itself

Each part that measures has `sections() -> Iterator[str]`, blocks of lines to print. A line that says MISSED names a
requirement that does not hold.
"""
