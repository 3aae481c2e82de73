"""The page, the tables and the sentences of an advice: complete, true to it, safe against what users write."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from page_checks import NASTY, Document, check_figures, figure_data, without_plotly
from rich.console import Console

from odcsim.analysis.advice import Advice, SyncComparison
from odcsim.analysis.advice_candidates import Knob, KnobPair
from odcsim.analysis.advice_gain import Gain
from odcsim.analysis.advise import advise
from odcsim.report.advice_cells import pair_rows
from odcsim.report.advice_page import advice_page
from odcsim.report.advice_table import print_advice_table
from odcsim.report.advice_wording import answer, explanation, gain_text, gain_words, how_compared, signed_gain
from odcsim.report.wording import percent
from odcsim.scenario import parse_scenario

SCENARIO = {
    "name": "small",
    "model": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 128, "vocab": 1000},
    "cluster": {"gpu": "a100-80g-sxm", "gpus_per_node": 4},
    "workload": {
        "lengths": {"lognormal": {"mean": 2500, "sigma": 1.2, "max": 8192}},
        "samples_per_rank": 6,
        "max_tokens": 8192,
        "minibatches": 8,
    },
    "compute": {"fitted": {"quadratic": 30.0, "linear": 3.0, "constant": 0.05, "per_tokens": 32000}},
    "cases": [{"sync": "fsdp", "policy": "local-sort"}],
}


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advise(parse_scenario(SCENARIO), base_folder=Path())


@pytest.fixture(scope="module")
def page(advice: Advice) -> str:
    return without_plotly(advice_page(advice, command="odcsim advise s.yaml"))


@pytest.fixture(scope="module")
def document(page: str) -> Document:
    return Document(page)


def printed(advice: Advice, *, width: int, terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    print_advice_table(advice, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def of_nothing(advice: Advice) -> Advice:
    """The advice for devices on which nothing fits."""
    cluster = {"gpu": {"base": "a100-80g-sxm", "memory_bytes": "1 MB"}, "gpus_per_node": 4}
    return advise(parse_scenario({**SCENARIO, "cluster": cluster}), base_folder=Path())


# Words


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.3249, "+32%"),
        (0.0999, "+10%"),
        (0.0994, "+9.9%"),
        (0.0312, "+3.1%"),
        (-0.004, "-0.4%"),
        (-0.0001, "+0.0%"),
        (-0.25, "-25%"),
    ],
)
def test_gains_are_rounded_as_far_as_they_are_known(share: float, text: str) -> None:
    assert signed_gain(share) == text


def test_gains_carry_their_intervals() -> None:
    gain = Gain(1.324, (1.304, 1.331), 200)
    assert gain_text(gain) == "+32% [+30%, +33%]"
    assert gain_words(gain) == "+32% (95% interval +30% to +33%)"
    single = Gain(1.324, None, 1)
    assert gain_text(single) == "+32%"
    assert "without interval" in gain_words(single)


def test_the_answer_tells_what_to_do_by_how_much_and_how_the_syncs_compare(advice: Advice) -> None:
    told, advised = answer(advice), advice.advised
    assert told.lead == (
        f"Use {advised.option.label}: {gain_words(advised.total)} samples a second over FSDP local-sort, which you run "
        "now."
    )
    assert all(setting in told.support for setting in advised.settings)
    assert advice.syncs is not None
    assert any(advice.syncs.fsdp.label in note and advice.syncs.odc.label in note for note in told.notes)


@pytest.mark.parametrize(
    ("gain", "text"),
    [
        (Gain(1.003, (0.998, 1.008), 20), "FSDP is as good as ODC here"),
        (Gain(1.05, (0.95, 1.15), 20), "more minibatches (--minibatches) may tell"),
        (Gain(1.008, (1.006, 1.009), 20), "less than the 1% that is worth a change"),
        (Gain(0.9, (0.85, 0.95), 20), "ODC is slower here: its best"),
        (Gain(1.2, (1.1, 1.3), 20), "gains +20% (95% interval +10% to +30%) over it"),
    ],
)
def test_the_syncs_are_compared_in_a_sentence(advice: Advice, gain: Gain, text: str) -> None:
    assert advice.syncs is not None
    syncs = SyncComparison(advice.syncs.fsdp, advice.syncs.odc, gain)
    assert any(text in note for note in answer(dataclasses.replace(advice, syncs=syncs)).notes)


def test_the_explanation_has_the_numbers_of_both(advice: Advice) -> None:
    text = " ".join(explanation(advice))
    for case in (advice.result.cases[0], advice.advised.case):
        assert case.label in text
        assert percent(case.fractions.synchronization) in text
        bound = f"{case.lower_bound_ratio:.2f} times the lower bound that no plan can beat under {case.sync.upper()}"
        assert bound in text
    for told in (
        "What limits it is imbalance: at every layer ranks wait for the busiest.",
        "of an even share of its compute in the mean",
        "The longest of all has 8,192 tokens.",
        "Memory: FSDP local-sort peaks at",
        "times that of any sync.",
        "If the cost model is wrong",
    ):
        assert told in text


def test_what_asks_for_more_than_settings_says_so(advice: Advice) -> None:
    samples = [step for step in advice.ladder if step.kind == "samples"]
    assert samples, "more samples balance better"
    assert any("another training recipe" in text for text in explanation(advice))


def test_two_knobs_that_are_worth_more_are_in_the_answer(advice: Advice) -> None:
    pair = advice.best_pair
    assert pair is not None
    (told,) = [note for note in answer(advice).notes if note.startswith("More is to be had")]
    assert told == (
        f"More is to be had with {pair.pair.one.label} and {pair.pair.other.label} together: "
        f"{advice.candidates[pair.position].label} then gains {gain_words(pair.total)} over FSDP local-sort, and "
        f"{gain_words(pair.beyond)} over {pair.better.knob.label} alone. But another minibatch is another training "
        "recipe."
    )
    overlap = Knob("overlap", "overlap prefetch", overlap="prefetch")
    for knobs, asks in (
        (KnobPair(pair.pair.one, overlap), "But the overlap needs software that can."),
        (
            KnobPair(pair.pair.other, overlap),
            "But another minibatch is another training recipe and the overlap needs software that can.",
        ),
    ):
        changed = dataclasses.replace(advice, best_pair=dataclasses.replace(pair, pair=knobs))
        assert any(note.endswith(asks) for note in answer(changed).notes)


def test_how_it_was_compared_is_told(advice: Advice) -> None:
    assert "on 8 minibatches, knobs and wrong models on the same" in how_compared(advice)
    fewer = dataclasses.replace(advice, few_minibatches=5)
    assert "on the first 5." in how_compared(fewer)


def test_a_safer_choice_is_named(advice: Advice) -> None:
    """The advised one loses a fifth under the last truth, another one nothing."""
    regret = advice.regret
    seconds_TCN = np.ones_like(regret.seconds_TCN)
    seconds_TCN[-1, regret.positions.index(advice.advised.position)] = 1.2
    seconds_TCN[0, 1] = 1.02
    changed = dataclasses.replace(advice, regret=dataclasses.replace(regret, seconds_TCN=seconds_TCN))
    (told,) = [text for text in explanation(changed) if text.startswith("If the cost model is wrong")]
    assert "loses at most 20.0% against the best choice of the worlds tried: with rank 2 1.2x slower" in told
    assert f"{advice.candidates[regret.positions[0]].label} would be safer: it loses 0.0% at most" in told


# The tables


def test_the_terminal_has_every_candidate_step_and_knob(advice: Advice) -> None:
    text = printed(advice, width=80, terminal=False)
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == "small"
    assert all(len(line) <= 120 for line in lines)
    for candidate in advice.candidates:
        assert sum(line.startswith(candidate.label) for line in lines) >= 2
    for found in advice.knobs:
        assert any(line.startswith(found.knob.label) for line in lines)
    (pairs,) = [place for place, line in enumerate(lines) if line == "two knobs that gain alone, together"]
    for found, line in zip(advice.pairs, lines[pairs + 2 :], strict=False):
        assert line.startswith(found.pair.label)
        assert advice.candidates[found.position].label in line
        for gain in (found.gain, found.beyond, found.total):
            assert gain_text(gain) in line
    candidate = advice.candidates[advice.advised.position]
    row = next(line for line in lines if line.startswith(candidate.label))
    assert "advised" in row
    assert percent(advice.result.cases[advice.advised.position].fractions.synchronization) in row
    assert answer(advice).lead in " ".join(text.split())


def test_a_narrow_terminal_keeps_gains(advice: Advice) -> None:
    lines = printed(advice, width=70, terminal=True).splitlines()
    (header,) = [line for line in lines if line.startswith("candidate")]
    assert len(header.rstrip()) <= 70
    assert {"minibatch", "gain"} <= set(header.split())


def test_what_does_not_fit_is_marked_and_left_out(advice: Advice) -> None:
    nothing = of_nothing(advice)
    text = printed(nothing, width=120, terminal=False)
    assert "OVER" in text
    assert "left out: FSDP local-sort: needs" in " ".join(text.split())
    assert "Nothing that was tried fits in memory." in text
    assert " advised" not in text.partition("ladder")[0]


# The page


def test_the_page_holds_the_answer_and_a_row_a_candidate(advice: Advice, document: Document) -> None:
    assert answer(advice).lead in document.text
    for position, candidate in enumerate(advice.candidates):
        row = document.row(candidate.label)
        case = advice.result.cases[position]
        assert row[4:6] == [percent(case.fractions.compute), percent(case.fractions.synchronization)]
        assert row[-1] == f"{case.lower_bound_ratio:.3f}"
    assert document.row("FSDP local-sort")[0] == "FSDP local-sortnow"
    assert "advised" in document.row(advice.candidates[advice.advised.position].label)[0]
    for text in (*explanation(advice), "odcsim advise s.yaml", how_compared(advice)):
        assert text in document.text


def test_every_figure_is_accepted_by_plotly_and_has_its_place(page: str) -> None:
    assert check_figures(page) == [
        "plot-candidates",
        "plot-ladder",
        "plot-regret",
        "plot-fractions",
        "plot-lengths",
        "plot-memory",
    ]


def test_the_page_has_a_row_a_pair(advice: Advice, document: Document) -> None:
    assert "Knobs, two together" in document.text
    for found in advice.pairs:
        for gain in (found.gain, found.beyond, found.total):
            assert gain_text(gain) in document.text
    none = dataclasses.replace(advice, pairs=(), best_pair=None)
    page = without_plotly(advice_page(none, command="any"))
    assert "Knobs, two together" not in page


def test_a_pair_that_does_not_fit_says_so(advice: Advice) -> None:
    pair = advice.pairs[0]
    memory = dataclasses.replace(pair.case.memory, capacity_bytes=1.0)
    case = dataclasses.replace(pair.case, memory=memory)
    over = dataclasses.replace(advice, pairs=(dataclasses.replace(pair, case=case),))
    (row,) = pair_rows(over)
    assert row[2].startswith("does not fit, OVER by ")


def test_a_page_of_what_does_not_fit(advice: Advice) -> None:
    document = Document(without_plotly(advice_page(of_nothing(advice), command="any")))
    assert "Nothing that was tried fits in memory." in document.text
    assert "Left out" in document.text


def test_what_users_write_is_text(advice: Advice) -> None:
    cases = (dataclasses.replace(advice.result.cases[0], label=NASTY), *advice.result.cases[1:])
    candidates = (dataclasses.replace(advice.candidates[0], label=NASTY), *advice.candidates[1:])
    steps = (dataclasses.replace(advice.ladder[0], label=NASTY), *advice.ladder[1:])
    nasty = dataclasses.replace(
        advice,
        result=dataclasses.replace(advice.result, name=NASTY, cases=cases),
        candidates=candidates,
        ladder=steps,
        warnings=(NASTY,),
    )
    page = without_plotly(advice_page(nasty, command=NASTY))
    assert "<script>alert" not in page
    assert Document(page).text.count(NASTY) > 8
    assert not [text for _, text in figure_data(page) if "\\u003cscript" in text]


def test_the_same_advice_gives_the_same_bytes(advice: Advice, page: str) -> None:
    again = advise(parse_scenario(SCENARIO), base_folder=Path())
    assert without_plotly(advice_page(again, command="odcsim advise s.yaml")) == page
