"""Least squares with terms that are not negative: what must hold of every fit, and how well it bears noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from odcsim.analysis import fits
from odcsim.analysis.fits import fit_nonnegative

DROP_ORDER = (2, 0)


def generator_of(seed):
    return np.random.Generator(np.random.PCG64(seed))


def terms_of_lengths(generator, count=60, most=9000):
    """Squared tokens, tokens and ones of single samples, as compute is fitted to."""
    tokens_K = generator.integers(10, most, count).astype(float)
    return np.stack([tokens_K**2, tokens_K, np.ones(count)], axis=1)


def fit(terms_KF, measured_K, *, groups_K=None, drop_order=DROP_ORDER, **options):
    groups_K = np.arange(len(measured_K)) if groups_K is None else groups_K
    return fit_nonnegative(terms_KF, measured_K, groups_K=groups_K, drop_order=drop_order, **options)


VALUES = np.array([2e-9, 6e-6, 2e-3])
COEFFICIENTS = st.tuples(
    st.sampled_from([0.0, 1e-10, 2e-9]), st.sampled_from([0.0, 1e-6, 6e-6]), st.sampled_from([0.0, 5e-4, 2e-2])
).filter(any)


# What holds of every fit


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    terms=st.integers(1, 3),
    count=st.integers(1, 30),
    scale=st.sampled_from([1e-6, 1e-3, 1.0]),
)
def test_no_term_is_negative_and_intervals_hold_their_values(data, terms, count, scale):
    """Whatever is measured, times of 0 and terms that say nothing included."""
    number = st.just(0.0) | st.floats(1e-6, 1e6)
    row = st.lists(number, min_size=terms, max_size=terms)
    terms_KF = np.array(data.draw(st.lists(row, min_size=count, max_size=count)))
    terms_KF[:, -1] += 1.0
    measured_K = np.array(data.draw(st.lists(number, min_size=count, max_size=count))) * scale
    groups_K = np.array(data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count)))
    found = fit(terms_KF, measured_K, groups_K=groups_K, drop_order=tuple(range(terms - 1)))
    assert (found.low_F >= 0).all()
    assert (found.low_F <= found.values_F).all()
    assert (found.values_F <= found.high_F).all()
    assert np.isfinite(found.high_F).all()
    assert (found.values_F[~found.identified_F] == 0).all()
    assert found.spread >= 0
    np.testing.assert_allclose(found.fitted_K, terms_KF @ found.values_F)
    assert (found.measured_K == measured_K).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 99), values=COEFFICIENTS)
def test_without_noise_every_term_is_found_exactly(seed, values):
    terms_KF = terms_of_lengths(generator_of(seed))
    measured_K = terms_KF @ np.array(values)
    found = fit(terms_KF, measured_K)
    assert found.identified_F.all()
    # Against what the term comes to in the longest sample.
    largest_F = terms_KF.max(axis=0) / measured_K.max()
    np.testing.assert_allclose(found.values_F * largest_F, np.array(values) * largest_F, atol=1e-9)
    np.testing.assert_allclose(found.low_F * largest_F, np.array(values) * largest_F, atol=1e-7)
    np.testing.assert_allclose(found.high_F * largest_F, np.array(values) * largest_F, atol=1e-7)
    np.testing.assert_allclose(found.fitted_K, measured_K, rtol=1e-6, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 99),
    factors=st.tuples(*[st.sampled_from([1e-9, 0.3, 1.0, 7.0, 1e9])] * 3),
)
def test_the_unit_of_a_term_does_not_matter(seed, factors):
    """Kilotokens for tokens: a thousandth of the term, a thousand times its value, and the same times."""
    generator, factors_F = generator_of(seed), np.array(factors)
    terms_KF = terms_of_lengths(generator)
    measured_K = terms_KF @ VALUES * generator.lognormal(0, 0.1, len(terms_KF))
    one, other = fit(terms_KF, measured_K), fit(terms_KF * factors_F, measured_K)
    np.testing.assert_allclose(other.fitted_K, one.fitted_K, rtol=1e-6)
    np.testing.assert_allclose(other.values_F * factors_F, one.values_F, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(other.high_F * factors_F, one.high_F, rtol=1e-5, atol=1e-12)
    assert (other.identified_F == one.identified_F).all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), factor=st.sampled_from([0.5, 3.0, 100.0]))
def test_a_machine_that_is_slower_by_a_factor_costs_so_much_more(seed, factor):
    """As long as its times are long against the clock's noise."""
    generator = generator_of(seed)
    terms_KF = terms_of_lengths(generator)
    measured_K = terms_KF @ VALUES * generator.lognormal(0, 0.1, len(terms_KF))
    one, other = fit(terms_KF, measured_K), fit(terms_KF, factor * measured_K)
    np.testing.assert_allclose(other.fitted_K, factor * one.fitted_K, rtol=1e-6)
    assert other.spread == pytest.approx(one.spread, rel=1e-5)


def test_the_same_observations_give_the_same_fit_to_the_last_bit():
    generator = generator_of(3)
    terms_KF = terms_of_lengths(generator)
    measured_K = terms_KF @ VALUES * generator.lognormal(0, 0.2, len(terms_KF))
    one, again, other = (fit(terms_KF, measured_K, seed=seed) for seed in (4, 4, 5))
    for name in ("values_F", "low_F", "high_F", "fitted_K"):
        assert getattr(one, name).tobytes() == getattr(again, name).tobytes()
    assert (one.values_F == other.values_F).all()
    assert (one.low_F != other.low_F).any()


def test_resampling_many_groups_in_blocks_changes_nothing(monkeypatch):
    generator = generator_of(3)
    terms_KF = terms_of_lengths(generator)
    measured_K = terms_KF @ VALUES * generator.lognormal(0, 0.2, len(terms_KF))
    whole = fit(terms_KF, measured_K)
    monkeypatch.setattr(fits, "_DRAWS_AT_ONCE", 7 * len(terms_KF))
    blocks = fit(terms_KF, measured_K)
    np.testing.assert_allclose(blocks.low_F, whole.low_F, rtol=1e-9)
    np.testing.assert_allclose(blocks.high_F, whole.high_F, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), terms=st.integers(1, 3), negative=st.booleans())
def test_normal_equations_are_solved_as_scipy_solves_the_whole(seed, terms, negative):
    """Also where terms come out as 0 because they would be negative."""
    generator = generator_of(seed)
    rows_KF = generator.random((12, terms))
    signs_F = generator.choice([-1.0, 1.0], terms) if negative else np.ones(terms)
    targets_K = rows_KF @ (signs_F * generator.random(terms)) + 0.1 * generator.standard_normal(12)
    normal_BFF, right_BF = (rows_KF.T @ rows_KF)[None], (rows_KF.T @ targets_K)[None]
    expected_F = nnls(rows_KF, targets_K)[0]
    np.testing.assert_allclose(fits._solve_normal(normal_BFF, right_BF)[0], expected_F, atol=1e-9)


# Terms that cannot be told apart


TOKENS = np.array([1000.0, 1000.0, 2000.0, 3000.0, 5000.0, 8000.0])


@pytest.mark.parametrize(
    ("terms_KF", "identified"),
    [
        (np.stack([TOKENS**2, TOKENS, np.ones(6)], axis=1), (True, True, True)),
        # One sample of one length: all three say the same.
        (np.array([[1e6, 1e3, 1.0]] * 6), (False, True, False)),
        # Packs of samples of one length: squares follow tokens, the constant does not.
        (np.stack([1000 * TOKENS, TOKENS, np.ones(6)], axis=1), (False, True, True)),
        # Packs of as many tokens: the constant follows tokens, squares do not.
        (np.stack([TOKENS**2, np.full(6, 8e3), np.ones(6)], axis=1), (True, True, False)),
        # Fewer observations than terms.
        (np.array([[1e6, 1e3, 1.0], [4e6, 2e3, 1.0]]), (True, True, False)),
        (np.array([[1e6, 1e3, 1.0]]), (False, True, False)),
        # Nothing of one term.
        (np.stack([np.zeros(6), TOKENS, np.ones(6)], axis=1), (False, True, True)),
    ],
    ids=["all apart", "one length", "packs of one length", "packs of one size", "two", "one", "a term of zeros"],
)
def test_as_few_terms_as_possible_are_given_up(terms_KF, identified):
    measured_K = terms_KF @ VALUES
    found = fit(terms_KF, measured_K)
    assert tuple(found.identified_F) == identified
    np.testing.assert_allclose(found.fitted_K, measured_K, rtol=1e-9)
    assert (found.values_F[~np.array(identified)] == 0).all()
    assert (found.high_F[~np.array(identified)] == 0).all()


def test_terms_must_differ_by_more_than_asked():
    """Two lengths that differ by a factor: of latency and bytes, the less distinct, the less they are told apart."""
    apart = {}
    for factor in (1.01, 1.2, 2.0, 4.0):
        terms_KF = np.array([[1.0, 1000.0], [1.0, 1000.0 * factor]] * 4)
        found = fit(terms_KF, terms_KF @ [1e-3, 1e-6], drop_order=(1,), least_distinct=0.2)
        apart[factor] = bool(found.identified_F[1])
    assert apart == {1.01: False, 1.2: False, 2.0: True, 4.0: True}


# Noise


def noisy(seed, count=400, *, kind="normal", strength=0.05, outliers=0.0):
    generator = generator_of(seed)
    terms_KF = terms_of_lengths(generator, count)
    exact_K = terms_KF @ VALUES
    if kind == "normal":
        factors_K = 1 + strength * generator.standard_normal(count)
    else:
        factors_K = generator.lognormal(-(strength**2) / 2, strength, count)
    factors_K[generator.random(count) < outliers] *= 20
    return terms_KF, exact_K, exact_K * factors_K


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    covered = np.zeros((40, 3), dtype=bool)
    for seed in range(40):
        terms_KF, _, measured_K = noisy(seed, 150)
        found = fit(terms_KF, measured_K, seed=seed)
        np.testing.assert_allclose(found.values_F, VALUES, rtol=0.25)
        covered[seed] = (found.low_F <= VALUES) & (found.high_F >= VALUES)
    assert (covered.mean(axis=0) >= 0.8).all()
    # An interval that always holds the truth would tell nothing.
    assert covered.mean() < 1.0


def test_the_spread_is_the_noise():
    for strength in (0.02, 0.1):
        terms_KF, _, measured_K = noisy(1, 2000, strength=strength)
        assert fit(terms_KF, measured_K).spread == pytest.approx(strength, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_a_few_observations_far_off_hardly_move_a_fit(seed):
    terms_KF, exact_K, clean_K = noisy(seed)
    _, _, dirty_K = noisy(seed, outliers=0.02)
    assert (dirty_K > 10 * exact_K).sum() > 3
    clean, dirty = fit(terms_KF, clean_K), fit(terms_KF, dirty_K)
    assert float(dirty.fitted_K.sum()) == pytest.approx(float(clean.fitted_K.sum()), rel=0.01)
    np.testing.assert_allclose(dirty.fitted_K, exact_K, rtol=0.05)
    # Without robustness they would.
    assert float(dirty_K.sum()) > 1.05 * float(clean_K.sum())


@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.2, 0.3])
def test_skewed_noise_leaves_sums_as_they_are(sigma):
    """A median would fall short by sigma squared over 2: 4.4% at 0.3."""
    off = []
    for seed in range(5):
        terms_KF, _, measured_K = noisy(seed, 2000, kind="lognormal", strength=sigma)
        off.append(float(fit(terms_KF, measured_K).fitted_K.sum() / measured_K.sum()) - 1)
    assert np.abs(np.mean(off)) < 0.01, off


def test_observations_of_one_group_share_their_luck():
    """Ten visits that are slow together tell as much as one: the interval must not shrink by their number."""
    generator = generator_of(2)
    terms_KF = np.repeat(terms_of_lengths(generator, 40), 10, axis=0)
    luck_K = np.repeat(1 + 0.1 * generator.standard_normal(40), 10)
    measured_K = terms_KF @ VALUES * luck_K
    together = fit(terms_KF, measured_K, groups_K=np.repeat(np.arange(40), 10))
    apart = fit(terms_KF, measured_K)
    assert (together.high_F - together.low_F > 2 * (apart.high_F - apart.low_F)).all()
    assert (together.values_F == apart.values_F).all()
