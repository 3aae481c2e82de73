"""Random work and schedules for the engines' property tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from odcsim.schedule import Schedule, Visit, Work

SECONDS = st.floats(0.0, 3.0, allow_nan=False, allow_subnormal=False).map(lambda value: round(value, 3))

LAGS = st.one_of(st.just(0.0), st.floats(0.0, 2.0, allow_nan=False, allow_subnormal=False))


@st.composite
def visit_programs(draw, *, most=7):
    """Visits with any pattern of gathers and reduces, not only the decoder's."""
    count = draw(st.integers(1, most))
    return tuple(
        Visit(
            unit=draw(st.integers(0, 3)),
            phase=draw(st.sampled_from(["forward", "backward"])),
            gathers=draw(st.booleans()),
            reduces=draw(st.booleans()),
        )
        for _ in range(count)
    )


@st.composite
def schedules(draw, *, sync, overlap=None, visits=None, free=False, bare=False):
    """A schedule; `free`: transfers cost nothing; `bare`: nothing surrounds the microbatches."""
    visits = draw(visit_programs()) if visits is None else visits

    def times(flag):
        return np.array([0.0 if free or not getattr(visit, flag) else draw(SECONDS) for visit in visits])

    lags = {name: 0.0 if free else draw(LAGS) for name in ("gather_lag", "reduce_lag")}
    around = {} if bare else {name: draw(SECONDS) for name in ("publish_s", "settle_s", "fixed_s", "optimizer_s")}
    return Schedule(
        sync=sync,
        overlap=draw(st.sampled_from(["prefetch", "gather-only", "none"])) if overlap is None else overlap,
        visits=visits,
        gather_s_V=times("gathers"),
        reduce_s_V=times("reduces"),
        **lags,
        **around,
    )


@st.composite
def works(draw, *, visits, equal_counts):
    """Compute times of any pattern: as many factors as visits, each its own column."""
    minibatches, ranks = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    most = draw(st.integers(0, 3))
    if equal_counts:
        counts_N = draw(st.lists(st.integers(0, most), min_size=minibatches, max_size=minibatches))
        counts_ND = np.repeat(np.array(counts_N, dtype=np.int64)[:, None], ranks, axis=1)
    else:
        flat = draw(st.lists(st.integers(0, most), min_size=minibatches * ranks, max_size=minibatches * ranks))
        counts_ND = np.array(flat, dtype=np.int64).reshape(minibatches, ranks)
    seed = draw(st.integers(0, 2**32 - 1))
    shape = (minibatches, ranks, most, len(visits))
    factors_NDMF = np.random.default_rng(seed).exponential(1.0, size=shape)
    factors_NDMF *= (np.arange(most) < counts_ND[:, :, None])[..., None]
    return Work(counts_ND=counts_ND, factors_NDMF=factors_NDMF, coefficients_FV=np.eye(len(visits)))
