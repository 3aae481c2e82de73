"""A fit of a rank's memory: what its process has, what training adds, and what each token of a microbatch adds. Bytes.

What the operating system counts is a running peak: the largest microbatch so far decides. Allocators keep what they
once had, so a run tells less of memory than of time; where its ranks ran microbatches of one size, nothing tells what a
token costs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odcsim.analysis.fits import fit_nonnegative
from odcsim.analysis.match import transport_of
from odcsim.analysis.observations import RunObservations
from odcsim.analysis.terms import mean_term, term_of
from odcsim.arrays import FloatArray
from odcsim.costs.calibrated import MemoryCosts

__all__ = ["fit_memory", "largest_tokens_ND"]

# Of the terms base and per_token, the latter is given up first.
_DROP_ORDER = (1,)


def fit_memory(observed: Sequence[RunObservations], *, seed: int) -> MemoryCosts | None:
    """What the runs show of memory; None where nobody counted it."""
    tokens, training, groups, process, staging = [], [], [], [], []
    for run, seen in enumerate(observed):
        memory_D = seen.run.info.memory
        if not memory_D:
            continue
        tokens.append(largest_tokens_ND(seen).T.reshape(-1))
        training.append(np.array([rank.training_bytes for rank in memory_D], dtype=np.float64).reshape(-1))
        # Readings of one rank follow each other: they share their luck.
        groups.append(np.repeat(run * seen.ranks + np.arange(seen.ranks), len(seen.run.info.window)))
        process += [float(rank.process_bytes) for rank in memory_D]
        if seen.sync == "fsdp" and transport_of(seen.run) == "collective":
            staging += [float(rank.shared_memory_bytes) for rank in memory_D]
    if not training:
        return None
    tokens_K = np.concatenate(tokens)
    fit = fit_nonnegative(
        np.stack([np.ones_like(tokens_K), tokens_K], axis=1),
        np.concatenate(training),
        groups_K=np.concatenate(groups),
        drop_order=_DROP_ORDER,
        seed=seed,
    )
    return MemoryCosts(
        process=mean_term(np.array(process), seed=seed),
        base=term_of(fit, 0),
        per_token=term_of(fit, 1),
        staging=mean_term(np.array(staging), seed=seed) if staging else None,
        spread=fit.spread,
        observations=len(tokens_K),
    )


def largest_tokens_ND(observed: RunObservations) -> FloatArray:
    """Tokens of the largest microbatch that each rank has run until the end of each minibatch of the window."""
    largest: FloatArray = np.maximum.accumulate(observed.tokens_NDM.max(axis=2, initial=0.0), axis=0)
    return largest
