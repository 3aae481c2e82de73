"""The parts of benchmarks/validate.py."""
