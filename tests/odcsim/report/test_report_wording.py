"""The headline and the small texts: the right case, the right numbers, the right caution."""

from __future__ import annotations

import dataclasses

import pytest
from report_samples import over_memory, sample_result, with_case

from odcsim.report.wording import best_case, context, headline, memory_text, plural, speedup_text
from odcsim.results import RunResult


@pytest.fixture(scope="module")
def result() -> RunResult:
    return sample_result(record_spans=False)


def with_speedup(result: RunResult, position: int, speedup: float, interval: tuple[float, float] | None) -> RunResult:
    return with_case(result, position, speedup=speedup, speedup_ci95=interval)


def test_the_headline_names_the_fastest_case_with_its_interval_and_what_the_baseline_wastes(result: RunResult) -> None:
    result = with_speedup(result, 2, 1.294, (1.27, 1.31))
    answer = headline(result)
    assert answer.lead == (
        "ODC lb-mini is 29% faster than FSDP lb-micro: a speedup of 1.29 (95% interval 1.27 to 1.31)."
    )
    wasted, left = (f"{100 * case.fractions.synchronization:.1f}%" for case in (result.cases[0], result.cases[2]))
    assert answer.support == (
        f"GPUs spend {wasted} of their time waiting for other ranks under the baseline, {left} under ODC lb-mini."
    )
    assert answer.notes == ()


def test_a_faster_case_that_does_not_fit_is_not_recommended_but_named(result: RunResult) -> None:
    result = with_case(result, 2, memory=over_memory(result.cases[2], over_bytes=7.9e9))
    assert best_case(result) is result.cases[1]
    answer = headline(result)
    assert answer.lead.startswith("ODC lb-micro is ")
    assert len(answer.notes) == 1
    assert answer.notes[0].startswith("ODC lb-mini would be faster still")
    assert "over by 7.9 GB" in answer.notes[0]


def test_a_baseline_that_does_not_fit_is_called_hypothetical(result: RunResult) -> None:
    result = with_case(result, 0, memory=over_memory(result.cases[0], over_bytes=2e9))
    assert headline(result).notes == (
        "The baseline does not fit in memory, over by 2 GB: its time is what it would be if it did.",
    )


def test_where_nothing_fits_the_nearest_is_named(result: RunResult) -> None:
    for position, over_bytes in enumerate((9e9, 3e9, 5e9)):
        memory = over_memory(result.cases[position], over_bytes=over_bytes)
        result = with_case(result, position, memory=memory)
    assert best_case(result) is result.cases[2]
    assert headline(result).notes == ("No case fits in memory; ODC lb-micro is the nearest to it, over by 3 GB.",)


def test_a_speedup_whose_interval_holds_one_is_not_sold_as_a_gain(result: RunResult) -> None:
    result = with_speedup(with_speedup(result, 1, 0.9, (0.88, 0.92)), 2, 1.01, (0.99, 1.03))
    lead = headline(result).lead
    assert "within what chance explains" in lead
    assert "faster than" not in lead


def test_a_baseline_that_nobody_beats_is_said_to_win(result: RunResult) -> None:
    result = with_speedup(with_speedup(result, 1, 0.9, (0.88, 0.92)), 2, 0.95, (0.93, 0.97))
    answer = headline(result)
    assert answer.lead == (
        "No other case beats the baseline, FSDP lb-micro: the fastest of them, ODC lb-mini, has a speedup of 0.95 "
        "(95% interval 0.93 to 0.97)."
    )


def test_one_case_is_described_without_comparison(result: RunResult) -> None:
    alone = dataclasses.replace(result, cases=result.cases[:1])
    lead = headline(alone).lead
    assert lead.startswith("FSDP lb-micro takes ")
    assert "speedup" not in headline(alone).text


def test_one_minibatch_gives_no_interval(result: RunResult) -> None:
    result = with_speedup(result, 2, 1.5, None)
    assert "a speedup of 1.50 (one minibatch, so no interval)" in headline(result).lead
    assert speedup_text(result.cases[2], baseline=result.cases[0]) == "1.50"


@pytest.mark.parametrize(
    ("speedup", "words"), [(1.034, "3.4% faster than"), (1.997, "100% faster than"), (2.5, "2.5 times as fast as")]
)
def test_gains_are_worded_by_their_size(result: RunResult, speedup: float, words: str) -> None:
    slow = with_speedup(result, 1, 0.9, (0.88, 0.92))
    assert words in headline(with_speedup(slow, 2, speedup, (speedup - 0.01, speedup + 0.01))).lead


def test_memory_says_by_how_much_it_is_over(result: RunResult) -> None:
    case = dataclasses.replace(result.cases[2], memory=over_memory(result.cases[2], over_bytes=7.9e9))
    assert memory_text(case) == "88.6 GB, OVER by 7.9 GB"
    assert memory_text(result.cases[0]) == "48.9 GB"


def test_the_context_says_what_was_run(result: RunResult) -> None:
    lines = context(result)
    assert lines["model"] == "qwen2.5-1.5b, 1.78B parameters"
    assert lines["cluster"] == "8 ranks (1 node x 8), a100-80g-sxm"
    assert lines["minibatch"] == "4 samples a rank, microbatches of at most 65,536 tokens"
    assert lines["engine"] == "40 minibatches simulated by the recurrence engine, seed 0"
    assert lines["lengths"].startswith("synthetic_longalign_10k_qwen; drawn: mean 15.5K")


def test_the_context_of_a_bare_document_is_what_is_known(result: RunResult) -> None:
    bare = dataclasses.replace(result, scenario={}, lengths={}, engine="measured")
    assert context(bare) == {"cluster": "8 ranks", "engine": "40 minibatches measured"}


def test_plurals() -> None:
    assert plural(1, "microbatch") == "1 microbatch"
    assert plural(1200, "microbatch") == "1,200 microbatches"
    assert plural(2, "rank") == "2 ranks"
