"""Lengths from a file of the user's: in all its forms, and refused where they are another run's."""

from __future__ import annotations

import json

import pytest
from kineto_files import on_cpu, write

from odcsim.errors import InputError
from odcsim.foreign import ingest

# Minibatches 4 and 5, two microbatches on each of two ranks; minibatch 3 was not recorded.
PLANS = [
    {"minibatch": 3, "ranks": [[[1]], [[1]]]},
    {"minibatch": 4, "ranks": [[[900, 100], [800]], [[1000], [700]]]},
    {"minibatch": 5, "ranks": [[[30], []], [[40, 10, 10], [50]]]},
]


@pytest.fixture
def files(tmp_path):
    return write(on_cpu(numbered_from=4), tmp_path)


def as_lines(plans):
    return "\n".join(map(json.dumps, plans)) + "\n\n"


@pytest.mark.parametrize(
    "text", [json.dumps(PLANS), json.dumps({"plans": PLANS, "schema": "odcsim.trace/1"}, indent=1), as_lines(PLANS)]
)
def test_lengths_become_tokens(tmp_path, files, text):
    path = tmp_path / "lengths"
    path.write_text(text)
    run = ingest(files, lengths=path)
    assert run.info.plans == {
        4: (((900, 100), (800,)), ((1000,), (700,))),
        5: (((30,), ()), ((40, 10, 10), (50,))),
    }
    for rank, spans in enumerate(run.spans_of_ranks):
        for span in spans:
            lengths = run.info.plans[span.minibatch][rank][span.microbatch] if span.microbatch >= 0 else ()
            assert span.tokens == sum(lengths)
            assert span.squared_tokens == sum(length**2 for length in lengths)


def test_a_single_entry(tmp_path):
    files = write(on_cpu(minibatches=1, microbatches=1), tmp_path)
    path = tmp_path / "lengths.json"
    path.write_text('{"minibatch": 0, "ranks": [[[7]], [[8]]]}')
    assert ingest(files, lengths=path).info.plans == {0: (((7,),), ((8,),))}


def test_without_a_file_nothing_is_known(files):
    run = ingest(files)
    assert run.info.plans == {}
    assert {(span.tokens, span.squared_tokens) for spans in run.spans_of_ranks for span in spans} == {(0, 0)}


def with_ranks(ranks):
    return json.dumps([PLANS[1], {"minibatch": 5, "ranks": ranks}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "line 1: is not JSON; give a list of the lengths"),
        (as_lines(PLANS[:2]) + "{", "line 4: is not JSON"),
        ("3", "holds no entry with minibatch and ranks"),
        ("[]", "holds no entry"),
        ("[[1]]", "entry 0: must be a JSON object"),
        (json.dumps(PLANS[:2]), "no entry of minibatch 5; the traces hold 4 to 5"),
        (json.dumps([*PLANS, PLANS[2]]), "entry 3.minibatch: 5: is there twice"),
        (as_lines([PLANS[1], {"ranks": []}]), "line 2.minibatch: required key is missing"),
        (with_ranks([[[1], [1]]]), "entry 1.ranks: [[[...], [...]]]: must hold an entry for each of the 2 ranks"),
        (with_ranks([[[1], [1]], [[1]]]), "plans [2, 1] microbatches, by rank, but [2, 2] were run"),
        (with_ranks([[[1], [0]], [[1], [1]]]), "lists of lengths (whole numbers of at least 1)"),
        (with_ranks([[[1], 1], [[1], [1]]]), "lists of lengths (whole numbers of at least 1)"),
        (with_ranks([7, [[1], [1]]]), "lists of lengths (whole numbers of at least 1)"),
    ],
)
def test_lengths_that_cannot_be_used(tmp_path, files, text, message):
    path = tmp_path / "lengths.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        ingest(files, lengths=path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_lengths_that_are_not_there(tmp_path, files):
    with pytest.raises(InputError, match="no such file; give the path of a list of the lengths"):
        ingest(files, lengths=tmp_path / "none.json")
