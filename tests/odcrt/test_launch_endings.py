"""Who is to blame for a failed run, and which errors follow from another rank's."""

from __future__ import annotations

import pytest

from odcrt.errors import DeadlineExceeded, PeerFailed, RankLost, StaleRead
from odcrt.launching import Ending, explain_failure
from odcrt.launching.bootstrap import is_follower
from odcrt.launching.endings import EndReport


def ending(rank, code, at_s, *, error=None, follows=False, stopped=False):
    report = None if error is None else EndReport(at_s, error, f"text of {rank}", follows, f"traceback of {rank}\n")
    return Ending(rank=rank, code=code, at_s=at_s, report=report, was_stopped=stopped)


def test_nobody_is_to_blame_if_all_end_well():
    assert explain_failure([ending(0, 0, 1.0), ending(1, 0, 2.0)]) is None


def test_the_first_own_error_is_to_blame_however_early_others_follow():
    failure = explain_failure(
        [
            ending(0, 1, 1.0, error="PeerFailed", follows=True),
            ending(1, 3, 3.0, error="ValueError"),
            ending(2, 4, 2.0, error="KeyError"),
            ending(3, 0, 0.5),
        ]
    )
    assert (failure.rank, failure.exit_code, failure.details) == (2, 4, "traceback of 2\n")


def test_a_killed_rank_is_to_blame_and_those_that_were_stopped_are_not():
    failure = explain_failure(
        [
            ending(0, -15, 1.0, stopped=True),
            ending(1, -9, 5.0),
            ending(2, 1, 4.0, error="RankLost", follows=True),
        ]
    )
    assert (failure.rank, failure.exit_code) == (1, 137)
    assert failure.headline == (
        "rank 1 was killed by SIGKILL (by the kernel for lack of memory, perhaps); rank 0 did not end in time and was "
        "stopped"
    )
    assert failure.details == "rank 2: RankLost: text of 2\n"


def test_if_all_follow_the_first_is_shown():
    failure = explain_failure(
        [
            ending(0, 1, 2.0, error="DeadlineExceeded", follows=True),
            ending(1, 1, 1.0, error="DeadlineExceeded", follows=True),
            ending(2, -9, 0.0, stopped=True),
        ]
    )
    assert (failure.rank, failure.details) == (1, "traceback of 1\n")


def test_an_error_that_ends_in_an_abort_is_still_told():
    """gloo aborts processes that end without a last meeting."""
    failure = explain_failure([ending(0, -6, 1.0, error="ValueError")])
    assert (failure.exit_code, failure.headline) == (134, "rank 0 failed, and ended by SIGABRT")
    assert failure.details == "traceback of 0\n"


def raised(error, *, cause=None, while_handling=None):
    """The error as it is caught, with what it came from."""
    try:
        try:
            if while_handling is not None:
                raise while_handling
        finally:
            raise error from cause
    except BaseException as caught:  # noqa: BLE001
        return caught


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PeerFailed("x"), True),
        (RankLost("x"), True),
        (DeadlineExceeded("x"), True),
        (StaleRead("x"), False),
        (ValueError("Connection closed by peer"), False),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"), True),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] something else"), False),
        (raised(ValueError("x"), cause=PeerFailed("y")), True),
        (raised(ValueError("x"), while_handling=RankLost("y")), True),
        (raised(ValueError("x"), cause=KeyError("y")), False),
    ],
    ids=repr,
)
def test_errors_that_follow_from_another_ranks(error, expected):
    assert is_follower(error) is expected
