"""Typed aliases of the arrays that modules hand to each other.

Array names end in a legend of their dimensions, outermost first:
    N minibatches, D ranks, M microbatches of a rank, V visits of a microbatch, F factors, S samples.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["BoolArray", "FloatArray", "IntArray"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
