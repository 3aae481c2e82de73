"""Drawing minibatches: conservation, groups, prefixes, seeds, and the statistics of distributions."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.errors import InputError
from odcsim.lengths import LengthSource, LengthSpec, LengthsWarning, load_source
from odcsim.lengths import source as source_module


def source_of(base_folder: Path = Path(), **written: Any) -> LengthSource:
    return load_source(LengthSpec.model_validate(written), base_folder=base_folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces whose row i holds i + 1, so that a length tells its row; "grouped-N-G" has N rows in groups of G."""
    folder = tmp_path_factory.mktemp("traces")
    for rows in (1, 5, 16, 24, 30):
        text = "\n".join(str(row + 1) for row in range(rows)) + "\n"
        (folder / f"plain-{rows}.csv").write_text(text)
        for group in (g for g in (2, 4, 8) if g <= rows):
            (folder / f"grouped-{rows}-{group}.csv").write_text(text)
            (folder / f"grouped-{rows}-{group}.json").write_text(f'{{"group_size": {group}}}')
    (folder / "hist.json").write_text('{"bin_edges": [10, 20, 40], "counts": [3, 1]}')
    return folder


ANY_SOURCE = st.sampled_from(
    [
        {"trace": "plain-30.csv"},
        {"trace": "grouped-24-8.csv"},
        {"trace": "grouped-30-4.csv"},
        {"values": [7, 8, 9]},
        {"constant": 5},
        {"uniform": {"min": 1, "max": 1_000_000_000}},
        {"lognormal": {"mean": 1000, "sigma": 1.5, "max": 20000}},
        {"histogram": "hist.json"},
        {"mixture": [{"weight": 1, "trace": "grouped-30-8.csv"}, {"weight": 2, "uniform": {"min": 100, "max": 999}}]},
        {
            "mixture": [
                {"weight": 5, "values": [1, 2, 3]},
                {"weight": 1, "lognormal": {"mean": 50, "sigma": 1}},
                {"weight": 1, "histogram": "hist.json"},
                {"weight": 2, "trace": "grouped-24-2.csv"},
            ]
        },
    ]
)
SIZES = {"minibatches": st.integers(1, 12), "samples": st.integers(1, 24), "seed": st.integers(0, 2**64)}


@settings(deadline=None)
@given(written=ANY_SOURCE, more=st.integers(0, 40), **SIZES)
@pytest.mark.filterwarnings("ignore::odcsim.lengths.LengthsWarning")
def test_more_minibatches_only_go_on_where_fewer_stop(
    folder: Path, written: dict[str, Any], more: int, minibatches: int, samples: int, seed: int
) -> None:
    source = source_of(folder, **written)
    few_NS = source.draw(minibatches, samples, seed)
    many_NS = source.draw(minibatches + more, samples, seed)
    assert few_NS.shape == (minibatches, samples)
    assert few_NS.dtype == np.int64
    assert np.array_equal(many_NS[:minibatches], few_NS)


@settings(deadline=None)
@given(written=ANY_SOURCE, block=st.integers(1, 50), **SIZES)
@pytest.mark.filterwarnings("ignore::odcsim.lengths.LengthsWarning")
def test_lengths_do_not_depend_on_the_blocks_they_are_drawn_in(
    folder: Path, written: dict[str, Any], block: int, minibatches: int, samples: int, seed: int
) -> None:
    source = source_of(folder, **written)
    whole_NS = source.draw(minibatches, samples, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "_BLOCK_SAMPLES", block)
        assert np.array_equal(source.draw(minibatches, samples, seed), whole_NS)


@settings(deadline=None)
@given(written=ANY_SOURCE, **SIZES)
@pytest.mark.filterwarnings("ignore::odcsim.lengths.LengthsWarning")
def test_the_seed_fixes_everything(
    folder: Path, written: dict[str, Any], minibatches: int, samples: int, seed: int
) -> None:
    first_NS = source_of(folder, **written).draw(minibatches, samples, seed)
    np.random.default_rng(seed).random(5)  # Nobody else's random numbers matter.
    assert np.array_equal(source_of(folder, **written).draw(minibatches, samples, seed), first_NS)


@pytest.mark.parametrize(
    "written",
    [
        {"trace": "plain-30.csv"},
        {"trace": "grouped-24-2.csv"},
        {"lognormal": {"mean": 1000, "sigma": 1}},
        {"uniform": {"min": 1, "max": 1000}},
        {"histogram": "hist.json"},
        {"mixture": [{"weight": 1, "trace": "plain-30.csv"}, {"weight": 1, "uniform": {"min": 100, "max": 999}}]},
    ],
)
def test_distinct_seeds_give_distinct_lengths(folder: Path, written: dict[str, Any]) -> None:
    source = source_of(folder, **written)
    assert len({source.draw(4, 8, seed).tobytes() for seed in range(50)}) == 50


def test_known_draws(folder: Path) -> None:
    """Values that must come out on every machine and with every version of numpy."""
    assert source_of(folder, trace="plain-5.csv").draw(2, 5, 0).tolist() == [[3, 2, 1, 4, 5], [2, 3, 4, 1, 5]]
    assert source_of(lognormal={"mean": 16600, "sigma": 0.75, "max": 65536}).draw(1, 4, 0).tolist() == [
        [16215, 11737, 7675, 8463]
    ]
    assert source_of(uniform={"min": 1, "max": 65536}).draw(1, 4, 1).tolist() == [[61712, 10516, 21107, 46497]]
    assert source_of(folder, histogram="hist.json").draw(1, 4, 0).tolist() == [[16, 13, 10, 24]]


@settings(deadline=None)
@given(
    rows=st.sampled_from([1, 5, 16, 24, 30]),
    group=st.sampled_from([1, 2, 4, 8]),
    epochs=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
@pytest.mark.filterwarnings("ignore::odcsim.lengths.LengthsWarning")
def test_every_epoch_holds_every_row_once_and_groups_in_their_order(
    folder: Path, rows: int, group: int, epochs: int, seed: int
) -> None:
    name = f"plain-{rows}.csv" if group == 1 or group > rows else f"grouped-{rows}-{group}.csv"
    source = source_of(folder, trace=name)
    for epoch_S in source.draw(epochs, rows, seed):
        assert sorted(epoch_S.tolist()) == list(range(1, rows + 1))
        left = (epoch_S - 1).tolist()
        while left:
            first = left[0]
            assert first % source.group_size == 0, "a group starts with its first row"
            size = min(source.group_size, rows - first)
            assert left[:size] == list(range(first, first + size)), "a group's rows are consecutive"
            del left[:size]


def test_epochs_are_shuffled_anew_and_evenly(folder: Path) -> None:
    epochs_KS = source_of(folder, values=[1, 2, 3]).draw(6000, 3, 0)
    orders = Counter(map(tuple, epochs_KS.tolist()))
    assert len(orders) == 6
    # Each of the six orders is expected 1000 times, with a standard deviation of 29.
    assert all(abs(count - 1000) < 150 for count in orders.values())


@settings(deadline=None)
@given(samples=st.sampled_from([8, 16, 24, 40]), minibatches=st.integers(1, 9), seed=st.integers(0, 2**32))
def test_whole_groups_stay_in_one_minibatch(folder: Path, samples: int, minibatches: int, seed: int) -> None:
    """No warning either, as it would be an error here."""
    for minibatch_S in source_of(folder, trace="grouped-24-8.csv").draw(minibatches, samples, seed):
        groups = (minibatch_S - 1) // 8
        assert np.array_equal(groups, np.repeat(groups[::8], 8))


@pytest.mark.parametrize(
    ("trace", "minibatches", "samples", "cut", "advice"),
    [
        ("grouped-16-8.csv", 1, 12, 1, "use a multiple of 8"),
        ("grouped-16-8.csv", 2, 12, 1, "use a multiple of 8"),  # cut at 12; 24 is the end of a group
        ("grouped-16-8.csv", 8, 3, 3, "use a multiple of 8"),  # 24 samples: each group is cut twice, and counted once
        ("grouped-30-8.csv", 15, 16, None, "not all groups are of that size"),
    ],
)
def test_a_group_cut_by_the_end_of_a_minibatch_is_announced(
    folder: Path, trace: str, minibatches: int, samples: int, cut: int | None, advice: str
) -> None:
    source = source_of(folder, trace=trace)
    number = r"\d+" if cut is None else str(cut)
    announced = rf"groups of up to 8 samples that are cut .* minibatch of {samples}: {number} \({advice}\)$"
    with pytest.warns(LengthsWarning, match=announced):
        lengths_NS = source.draw(minibatches, samples, 0)
    flat = lengths_NS.reshape(-1)
    rows = int(trace.split("-")[1])
    for epoch in range(flat.size // rows):  # Cut or not, no row is lost.
        assert sorted(flat[epoch * rows : (epoch + 1) * rows]) == list(range(1, rows + 1))


@settings(deadline=None)
@given(mixed=st.booleans(), **SIZES)
def test_every_cut_group_is_counted_once(
    folder: Path, *, mixed: bool, minibatches: int, samples: int, seed: int
) -> None:
    grouped = {"trace": "grouped-30-8.csv"}
    mixture = {"mixture": [{"weight": 1, **grouped}, {"weight": 1, "uniform": {"min": 100, "max": 999}}]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lengths_NS = source_of(folder, **(mixture if mixed else grouped)).draw(minibatches, samples, seed)
    flat = lengths_NS.reshape(-1).tolist()
    position = cut = 0
    while position < len(flat):
        first = flat[position]  # of the group that starts here: the last of the trace has 6 rows, the rest have 8
        size = 1 if first >= 100 else min(8, 31 - first)
        cut += position // samples != (position + size - 1) // samples
        position += size
    announced = [int(str(warning.message).rsplit(": ", 1)[1].split()[0]) for warning in caught]
    assert announced == ([cut] if cut else [])


@settings(deadline=None)
@given(mixed=st.booleans(), **SIZES)
def test_groups_are_numbered_as_their_samples_are_drawn(
    folder: Path, *, mixed: bool, minibatches: int, samples: int, seed: int
) -> None:
    grouped = {"trace": "grouped-30-8.csv"}
    mixture = {"mixture": [{"weight": 1, **grouped}, {"weight": 1, "uniform": {"min": 100, "max": 999}}]}
    source = source_of(folder, **(mixture if mixed else grouped))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LengthsWarning)
        lengths_NS = source.draw(minibatches, samples, seed)
    groups_NS = source.draw_groups(minibatches, samples, seed)
    assert groups_NS.shape == lengths_NS.shape
    # Rows 1, 9, 17 and 25 begin a group of the trace; the other component comes one by one.
    begins_S = (lengths_NS >= 100) | (lengths_NS % 8 == 1)
    assert groups_NS.reshape(-1).tolist() == (np.cumsum(begins_S) - 1).tolist()


def test_lengths_warnings_are_user_warnings() -> None:
    assert issubclass(LengthsWarning, UserWarning)


def test_a_lognormal_has_the_mean_and_sigma_it_was_given() -> None:
    lengths_S = source_of(lognormal={"mean": 16600, "sigma": 0.75}).draw(1, 400_000, 0).reshape(-1)
    # Standard errors: 0.14% of the mean, 0.0012 of mu, 0.0008 of sigma.
    assert lengths_S.mean() == pytest.approx(16600, rel=0.007)
    assert np.log(lengths_S).mean() == pytest.approx(math.log(16600) - 0.75**2 / 2, abs=0.006)
    assert np.log(lengths_S).std() == pytest.approx(0.75, abs=0.004)


def test_a_lognormal_is_clipped_to_its_bounds() -> None:
    low, high = 2000, 65536
    written = {"mean": 16600, "sigma": 0.75, "min": low, "max": high}
    lengths_S = source_of(lognormal=written).draw(1, 400_000, 0).reshape(-1)
    normal = NormalDist(math.log(16600) - 0.75**2 / 2, 0.75)
    assert (lengths_S.min(), lengths_S.max()) == (low, high)
    # A length is at a bound if it lies beyond it, or within half a token of it. Standard error below 0.0002.
    assert (lengths_S == low).mean() == pytest.approx(normal.cdf(math.log(low + 0.5)), abs=0.001)
    assert (lengths_S == high).mean() == pytest.approx(1 - normal.cdf(math.log(high - 0.5)), abs=0.001)


def test_a_lognormal_without_spread_is_its_mean() -> None:
    assert set(source_of(lognormal={"mean": 99.6, "sigma": 0}).draw(1, 50, 0).reshape(-1).tolist()) == {100}


@pytest.mark.parametrize("sigma", [1, 3, 10])
def test_an_unbounded_lognormal_stays_within_the_longest_length(sigma: float) -> None:
    lengths_S = source_of(lognormal={"mean": 1e9, "sigma": sigma}).draw(1, 10_000, 0)
    assert lengths_S.min() >= 1
    assert lengths_S.max() <= 1_000_000_000


def test_a_uniform_reaches_both_bounds_evenly() -> None:
    values, counts = np.unique(source_of(uniform={"min": 3, "max": 6}).draw(1, 40_000, 0), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert np.all(np.abs(counts - 10_000) < 450)  # five standard deviations


def test_a_uniform_of_one_length_and_a_constant_are_that_length() -> None:
    assert source_of(uniform={"min": 9, "max": 9}).draw(2, 3, 0).tolist() == [[9] * 3] * 2
    assert source_of(constant=4096).draw(2, 3, 0).tolist() == [[4096] * 3] * 2


def test_weights_of_a_mixture_are_shares_of_the_samples(folder: Path) -> None:
    # Rows are 1 to 30 in groups of 8, 8, 8 and 6; the other component comes one by one, from 100 on.
    source = source_of(
        folder, mixture=[{"weight": 3, "trace": "grouped-30-8.csv"}, {"weight": 7, "uniform": {"min": 100, "max": 101}}]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LengthsWarning)
        lengths_S = source.draw(1, 200_000, 0).reshape(-1)
    assert (lengths_S <= 30).mean() == pytest.approx(0.3, abs=0.01)


def test_components_of_a_mixture_keep_their_own_ways(folder: Path) -> None:
    """The trace's part is shuffled without replacement in whole groups, whatever comes between them."""
    source = source_of(
        folder, mixture=[{"weight": 1, "trace": "grouped-24-2.csv"}, {"weight": 1, "uniform": {"min": 100, "max": 999}}]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LengthsWarning)
        lengths_S = source.draw(10, 100, 3).reshape(-1)
    starts = np.flatnonzero((lengths_S < 100) & (lengths_S % 2 == 1))[:-1]
    assert np.array_equal(lengths_S[starts + 1], lengths_S[starts] + 1)
    own_S = lengths_S[lengths_S < 100]
    for epoch in range(own_S.size // 24):
        assert sorted(own_S[epoch * 24 : (epoch + 1) * 24]) == list(range(1, 25))
    assert own_S.size > 240


def test_a_mixture_of_one_is_shuffled_as_its_component_is(folder: Path) -> None:
    lengths_NS = source_of(folder, mixture=[{"weight": 0.1, "values": [4, 5, 6]}]).draw(5, 3, 0)
    assert [sorted(epoch) for epoch in lengths_NS.tolist()] == [[4, 5, 6]] * 5


def test_equal_components_of_a_mixture_are_drawn_independently(folder: Path) -> None:
    uniform = {"min": 1, "max": 1_000_000_000}
    mixture = [{"weight": 1, "uniform": uniform}, {"weight": 1, "uniform": uniform}]
    lengths_S = source_of(folder, mixture=mixture).draw(1, 1000, 0).reshape(-1)
    assert np.unique(lengths_S).size == 1000


def test_a_large_cluster_is_drawn_at_once(folder: Path) -> None:
    source = source_of(folder, trace="plain-30.csv")
    start_s = time.process_time()
    assert source.draw(10, 8192 * 4, 0).shape == (10, 32768)
    assert time.process_time() - start_s < 0.5


def test_a_draw_that_would_fill_the_memory_is_refused(folder: Path) -> None:
    source = load_source(LengthSpec(constant=5), base_folder=folder, file="scenario.yaml")
    with pytest.raises(InputError, match=r"^scenario.yaml: 10,000 minibatches of 10,000 .*fewer than 100,000,000"):
        source.draw(10_000, 10_000, 0)


def test_the_limit_itself_is_refused_and_one_less_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "MOST_SAMPLES_PER_DRAW", 100)
    assert source_of(constant=5).draw(1, 99, 0).size == 99
    with pytest.raises(InputError, match="fewer than 100 are allowed"):
        source_of(constant=5).draw(4, 25, 0)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ((0, 4, 0), "count_minibatches"),
        ((1.5, 4, 0), "count_minibatches"),
        ((1, -4, 0), "samples_per_minibatch"),
        ((1, 4, -1), "seed"),
        ((1, 4, None), "seed"),
    ],
)
def test_arguments_out_of_range_are_named(arguments: tuple[Any, ...], key: str | None) -> None:
    with pytest.raises(InputError, match=f"^{key}: .*whole number"):
        source_of(constant=5).draw(*arguments)


def test_numpy_integers_are_taken() -> None:
    assert source_of(constant=5).draw(np.int64(1), np.int32(2), np.uint64(3)).tolist() == [[5, 5]]


def test_paths_start_from_the_base_folder_and_may_be_absolute(folder: Path) -> None:
    nested = folder / "scenarios"
    for path in ("../plain-5.csv", str(folder / "plain-5.csv")):
        nested.mkdir(exist_ok=True)
        assert source_of(nested, trace=path).name == "plain-5"


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ({"trace": "none.csv"}, "workload.lengths.trace"),
        ({"histogram": "none.json"}, "workload.lengths.histogram"),
        ({"mixture": [{"weight": 1, "constant": 5}, {"weight": 1, "trace": "x"}]}, "workload.lengths.mixture.1.trace"),
    ],
)
def test_a_missing_file_is_named_with_its_key(folder: Path, written: dict[str, Any], key: str | None) -> None:
    with pytest.raises(InputError, match="no such file") as caught:
        source_of(folder, **written)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("written", "name", "described"),
    [
        ({"trace": "plain-5.csv"}, "plain-5", "trace plain-5 (5 lengths, mean 3, max 5)"),
        (
            {"trace": "grouped-16-8.csv"},
            "grouped-16-8",
            "trace grouped-16-8 (16 lengths, mean 8.5, max 16), in groups of 8",
        ),
        ({"values": [4, 8]}, "values", "values (2 lengths, mean 6, max 8)"),
        ({"histogram": "hist.json"}, "hist", "histogram hist (mean 18.4, max 40)"),
        ({"constant": 7}, "constant(7)", "constant(7), synthetic"),
        ({"uniform": {"min": 1, "max": 9}}, "uniform(1 to 9)", "uniform(1 to 9), synthetic"),
        (
            {"lognormal": {"mean": 16600, "sigma": 0.75, "max": 65536}},
            "lognormal(mean 16600, sigma 0.75, 1 to 65536)",
            "lognormal(mean 16600, sigma 0.75, 1 to 65536), synthetic",
        ),
        (
            {"lognormal": {"mean": 16600, "sigma": 0.75, "min": 2}},
            "lognormal(mean 16600, sigma 0.75, from 2)",
            "lognormal(mean 16600, sigma 0.75, from 2), synthetic",
        ),
        (
            {"mixture": [{"weight": 3, "trace": "grouped-16-8.csv"}, {"weight": 1, "constant": 7}]},
            "mixture of 75% grouped-16-8, 25% constant(7)",
            (
                "mixture of 75% trace grouped-16-8 (16 lengths, mean 8.5, max 16), 25% constant(7), "
                "in groups of 8, synthetic"
            ),
        ),
    ],
)
def test_sources_introduce_themselves(folder: Path, written: dict[str, Any], name: str, described: str) -> None:
    source = source_of(folder, **written)
    assert source.name == name
    assert source.describe() == described
    assert source.synthetic == described.endswith(", synthetic")
    assert source.group_size == (8 if "in groups of 8" in described else 1)


def test_provenance_is_the_files_own_or_the_parameters(folder: Path) -> None:
    assert source_of(folder, trace="grouped-16-8.csv").provenance == {"group_size": 8}
    assert source_of(constant=7).provenance == {"constant": 7}
    mixture = source_of(folder, mixture=[{"weight": 3, "trace": "grouped-16-8.csv"}, {"weight": 1, "constant": 7}])
    assert mixture.provenance == {
        "mixture": [
            {"weight": 3, "name": "grouped-16-8", "synthetic": False, "provenance": {"group_size": 8}},
            {"weight": 1, "name": "constant(7)", "synthetic": True, "provenance": {"constant": 7}},
        ]
    }
