"""Sequence lengths: traces of real data sets, distributions, and the minibatches drawn from them. Unit: tokens.

`LengthSpec` is what a scenario writes, `load_source` reads the files it names, `LengthSource.draw` makes minibatches.
"""

from odcsim.lengths.distributions import Lognormal, Uniform
from odcsim.lengths.histogram import LengthHistogram, read_histogram
from odcsim.lengths.limits import LONGEST_TOKENS, MOST_SAMPLES_PER_DRAW
from odcsim.lengths.source import LengthSource, LengthsWarning, load_source
from odcsim.lengths.spec import LengthSpec, MixtureComponent, SourceKind
from odcsim.lengths.statistics import LengthStatistics, cut, describe_lengths, scaled
from odcsim.lengths.trace import LengthTrace, read_trace

__all__ = [
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
