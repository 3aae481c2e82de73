"""The package's public names, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import odcsim.lengths


def test_exported_names() -> None:
    assert odcsim.lengths.__all__ == [
        "LONGEST_TOKENS",
        "MOST_SAMPLES_PER_DRAW",
        "LengthHistogram",
        "LengthSource",
        "LengthSpec",
        "LengthStatistics",
        "LengthTrace",
        "LengthsWarning",
        "Lognormal",
        "MixtureComponent",
        "SourceKind",
        "Uniform",
        "cut",
        "describe_lengths",
        "load_source",
        "read_histogram",
        "read_trace",
        "scaled",
    ]
    assert all(hasattr(odcsim.lengths, name) for name in odcsim.lengths.__all__)


def test_importing_is_cheap() -> None:
    heavy = "{'scipy', 'simpy', 'plotly', 'rich', 'typer', 'torch', 'yaml'}"
    code = f"import sys, odcsim.lengths; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
