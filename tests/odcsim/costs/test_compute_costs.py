"""Compute costs: numbers worked out by hand for a decoder small enough, and the published fit."""

from __future__ import annotations

import numpy as np
import pytest

from odcsim.costs.compute import analytic_compute, fitted_compute, microbatch_cost
from odcsim.costs.token_cost import TokenCost
from odcsim.model_shape import ModelShape
from odcsim.schedule import decoder_visits

# Weights that tokens are multiplied with in a block: q and o 2 x 8 x 8, k and v 2 x 8 x 4, FFN 3 x 8 x 16: 576.
SHAPE = ModelShape(name="small", layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, ffn=16, vocab=10)
VISITS = decoder_visits(2)
# Embedding, two blocks, head; head, two blocks, embedding.
EMBEDDING, BLOCK, HEAD, HEAD_BACKWARD, BLOCK_BACKWARD, EMBEDDING_BACKWARD = 0, 1, 3, 4, 5, 7
FIT = TokenCost(quadratic=0.5, linear=3.0, constant=8.0)
GOLDEN_FIT = TokenCost(quadratic=1.982122 / 32000**2, linear=2.611821 / 32000, constant=0.666759)


def analytic(*, recompute=True, overhead_s=0.0):
    return analytic_compute(
        SHAPE,
        VISITS,
        peak_flops_per_s=1000.0,
        linear_efficiency=0.5,
        attention_efficiency=0.25,
        recompute=recompute,
        visit_overhead_s=overhead_s,
    )


@pytest.mark.parametrize(
    ("visit", "recompute", "quadratic", "linear"),
    [
        (EMBEDDING, True, 0, 0),
        # 2 x 576 FLOPs a token at 500 FLOP/s; 2 x 2 x 4 FLOPs a squared token at 250 FLOP/s.
        (BLOCK, True, 0.064, 2.304),
        (BLOCK + 1, True, 0.064, 2.304),
        # 2 x 10 x 8 FLOPs a token.
        (HEAD, True, 0, 0.32),
        (HEAD_BACKWARD, True, 0, 0.64),
        # Backward: 2 x the matrix products and 2.5 x the attention; recomputation adds one forward.
        (BLOCK_BACKWARD, True, 3.5 * 0.064, 3 * 2.304),
        (BLOCK_BACKWARD, False, 2.5 * 0.064, 2 * 2.304),
        (EMBEDDING_BACKWARD, True, 0, 0),
    ],
)
def test_seconds_of_a_visit(visit, recompute, quadratic, linear):
    np.testing.assert_allclose(analytic(recompute=recompute)[:, visit], [quadratic, linear, 0], rtol=1e-12)


def test_seconds_of_a_microbatch():
    cost = microbatch_cost(analytic())
    assert cost.linear == pytest.approx(2 * 4 * 2.304 + 3 * 0.32)
    assert cost.quadratic == pytest.approx(2 * 4.5 * 0.064)
    assert cost.constant == 0
    plain = microbatch_cost(analytic(recompute=False))
    assert (plain.linear, plain.quadratic) == pytest.approx((2 * 3 * 2.304 + 3 * 0.32, 2 * 3.5 * 0.064))


def test_overhead_is_paid_once_each_way_by_every_unit():
    overhead_V = analytic(overhead_s=0.1)[2]
    np.testing.assert_allclose(overhead_V, [0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0], rtol=1e-12)


@pytest.mark.parametrize(("recompute", "backward"), [(True, 3), (False, 2)])
def test_a_fit_is_shared_out_and_sums_up_again(recompute, backward):
    shared_FV = fitted_compute(SHAPE, VISITS, fit=FIT, recompute=recompute)
    total = microbatch_cost(shared_FV)
    assert (total.quadratic, total.linear, total.constant) == pytest.approx((0.5, 3.0, 8.0), rel=1e-12)
    # The constant: evenly over the blocks, a backward weighing two forwards (three with recomputation).
    forward_s = 8.0 / (2 * (1 + backward))
    np.testing.assert_allclose(
        shared_FV[2], [0, forward_s, forward_s, 0, 0, backward * forward_s, backward * forward_s, 0], rtol=1e-12
    )
    # The other terms: as the analytic model does.
    reference_FV = analytic(recompute=recompute)
    np.testing.assert_allclose(shared_FV[0], 0.5 * reference_FV[0] / reference_FV[0].sum(), rtol=1e-12)
    np.testing.assert_allclose(shared_FV[1], 3.0 * reference_FV[1] / reference_FV[1].sum(), rtol=1e-12)


@pytest.mark.parametrize(
    ("lengths", "seconds"),
    [
        ([32_000], 1.982122 + 2.611821 + 0.666759),
        ([16_000, 16_000], 1.982122 / 2 + 2.611821 + 0.666759),
        ([65_536], 1.982122 * 2.048**2 + 2.611821 * 2.048 + 0.666759),
        ([], 0.666759),
    ],
)
def test_the_published_fit(lengths, seconds):
    """Seconds of a microbatch of the 1.5B on an A100, by the cost fit of the ODC paper's code."""
    shape = ModelShape(
        name="1.5B", layers=28, hidden=1536, heads=12, kv_heads=2, head_dim=128, ffn=8960, vocab=151936, qkv_bias=True
    )
    coefficients_FV = fitted_compute(shape, decoder_visits(28), fit=GOLDEN_FIT, recompute=True)
    factors = [sum(length**2 for length in lengths), sum(lengths), 1]
    assert (factors @ coefficients_FV).sum() == pytest.approx(seconds, rel=1e-12)


def test_costs_of_samples():
    costs_S = FIT.sample_costs_S(np.array([1, 2, 10]))
    assert costs_S.tolist() == [3.5, 8.0, 80.0]


def test_long_samples_do_not_overflow():
    assert TokenCost(quadratic=1.0, linear=0.0).sample_costs_S(np.array([10**10])).tolist() == [1e20]


def test_absurd_rates_give_times_without_end_not_a_crash():
    coefficients_FV = analytic_compute(
        SHAPE,
        VISITS,
        peak_flops_per_s=5e-324,
        linear_efficiency=5e-324,
        attention_efficiency=5e-324,
        recompute=True,
    )
    assert np.isinf(coefficients_FV[:2, BLOCK]).all()
