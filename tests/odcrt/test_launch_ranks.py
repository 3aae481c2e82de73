"""`odcrt launch SCRIPT.py`: processes, their environment and output, and how a run ends. Needs no torch."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from launched import is_alive, odcrt, started_odcrt, wait_for

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

TRACEBACK = "Traceback (most recent call last):\n"


@pytest.fixture
def script(tmp_path):
    """Writes a script that knows `rank`, and waits for all ranks to be there where it calls `meet()`."""

    def write(text, name="script.py"):
        head = (
            "import os, pathlib, signal, sys, time\n"
            "rank, ranks = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
            "def meet(name):\n"
            "    pathlib.Path(f'{name}-{rank}').touch()\n"
            "    while not all(pathlib.Path(f'{name}-{other}').exists() for other in range(ranks)):\n"
            "        time.sleep(0.01)\n"
        )
        path = tmp_path / name
        path.write_text(head + text)
        return path

    return write


# Starting


def test_ranks_get_the_environment_of_torchrun_and_the_arguments(script, tmp_path):
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS"]
    path = script(
        "import json\n"
        f"found = {{name: os.environ[name] for name in {names}}}\n"
        "found['port'] = int(os.environ['MASTER_PORT'])\n"
        "found['own'] = [name for name in os.environ if name in ('ODCRT_END_REPORT', 'ODCRT_LAUNCHER_PID')]\n"
        "found.update(arguments=sys.argv, path=sys.path[0], name=__name__)\n"
        "pathlib.Path(f'found-{rank}').write_text(json.dumps(found))\n"
    )
    run = odcrt("launch", "--nproc", 3, path, "--json", "--set", "a=b", "x", folder=tmp_path)
    assert run.code == 0, run.err
    found = [json.loads((tmp_path / f"found-{rank}").read_text()) for rank in range(3)]
    assert [[ranked[name] for name in names] for ranked in found] == [
        [str(rank), str(rank), "3", "3", "127.0.0.1", "1"] for rank in range(3)
    ]
    assert len({ranked["port"] for ranked in found}) == 1
    assert all(1024 <= ranked["port"] <= 65535 for ranked in found)
    # What looks like our options is the script's once it comes after it.
    assert found[0]["arguments"] == [str(path), "--json", "--set", "a=b", "x"]
    assert (found[0]["path"], found[0]["name"], found[0]["own"]) == (str(tmp_path), "__main__", [])


def test_threads_that_the_user_asks_for_are_kept(script, tmp_path):
    run = odcrt(
        "launch", "--nproc", 1, script("print(os.environ['OMP_NUM_THREADS'])"), folder=tmp_path, OMP_NUM_THREADS="7"
    )
    assert run.out == "7\n"


def test_without_a_number_there_are_two_to_eight_ranks(script, tmp_path):
    run = odcrt("launch", script("rank or print(ranks)"), folder=tmp_path)
    assert int(run.out) == min(max(2, len(os.sched_getaffinity(0)) // 2), 8)


# Output


def test_output_is_forwarded_with_prefixes_and_kept(script, tmp_path):
    path = script("print('out', rank)\nmeet('printed')\nprint('err', rank, file=sys.stderr)\n")
    run = odcrt("launch", "--nproc", 2, "--log-dir", "logs", path, folder=tmp_path)
    assert run.code == 0
    assert sorted(run.out.splitlines()) == ["[rank 1] out 1", "out 0"]
    told = [line for line in run.err.splitlines() if "PyTorch is not installed" not in line]
    assert sorted(told) == ["[rank 1] err 1", "err 0"]
    assert [(tmp_path / "logs" / f"rank-{rank}.log").read_text() for rank in range(2)] == [
        "out 0\nerr 0\n",
        "out 1\nerr 1\n",
    ]


@pytest.mark.parametrize(("choice", "expected"), [("all", ["[rank 0] 0", "[rank 1] 1"]), ("none", ["0", "1"])])
def test_prefixes_can_be_chosen(choice, expected, script, tmp_path):
    run = odcrt("launch", "--nproc", 2, "--prefix", choice, script("print(rank)"), folder=tmp_path)
    assert sorted(run.out.splitlines()) == expected


def test_lines_of_different_ranks_do_not_mix(script, tmp_path):
    path = script(
        "for number in range(200):\n"
        "    for part in (f'<{rank}:', str(number), '>\\n'):\n"
        "        os.write(1, part.encode())\n"
    )
    run = odcrt("launch", "--nproc", 3, "--prefix", "all", path, folder=tmp_path)
    lines = run.out.splitlines()
    for rank in range(3):
        own = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        assert own == [f"[rank {rank}] <{rank}:{number}>" for number in range(200)]
    assert len(lines) == 600


def test_a_prompt_shows_before_its_line_ends(script, tmp_path):
    path = script("rank or os.write(1, b'waiting...')\ntime.sleep(30)\n")
    with started_odcrt("launch", "--nproc", 2, path, folder=tmp_path) as process:
        assert os.read(process.stdout.fileno(), 100) == b"waiting..."


# Failing


def test_the_first_failing_ranks_traceback_is_last_and_its_code_ours(script, tmp_path):
    """Rank 1 fails; rank 0 says so before rank 1's process has ended, and rank 2 after."""
    path = script(
        "from odcrt.errors import PeerFailed, RankLost\n"
        "meet('there')\n"
        "if rank == 1:\n"
        "    try:\n"
        "        raise ValueError('the cause')\n"
        "    finally:\n"
        "        time.sleep(0.3)\n"
        "time.sleep(0.1 if rank == 0 else 0.6)\n"
        "raise (PeerFailed if rank == 0 else RankLost)('rank 1 it was')\n"
    )
    run = odcrt("launch", "--nproc", 3, path, folder=tmp_path)
    assert run.code == 1
    last = run.err[run.err.rindex(TRACEBACK) :]
    assert re.fullmatch(
        re.escape(TRACEBACK) + r'  File "[^"]*script.py", line 11, in <module>\n.*ValueError: the cause\n',
        last,
        re.DOTALL,
    )
    assert "odcrt: error: rank 1 failed with exit code 1\n" + last in run.err
    # All of it has been shown live, too.
    assert "[rank 1] ValueError: the cause\n" in run.err
    assert "[rank 2] odcrt.errors.RankLost: rank 1 it was\n" in run.err


@pytest.mark.parametrize(
    ("ending", "code", "told"),
    [
        ("sys.exit(7)", 7, "odcrt: error: rank 1 failed with exit code 7\n"),
        ("os._exit(9)", 9, "odcrt: error: rank 1 failed with exit code 9\n"),
        ("sys.exit('no data')", 1, "odcrt: error: rank 1 failed with exit code 1\nno data\n"),
    ],
)
def test_exit_codes_are_passed_on(ending, code, told, script, tmp_path):
    run = odcrt("launch", "--nproc", 2, script(f"if rank == 1:\n    {ending}\n"), folder=tmp_path)
    assert run.code == code
    assert run.err.endswith(told)


def test_a_rank_that_is_killed_is_told_with_what_the_others_say(script, tmp_path):
    path = script(
        "from odcrt.errors import RankLost\n"
        "meet('there')\n"
        "if rank == 2:\n"
        "    print('last words')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(0.3)\n"
        "raise RankLost('rank 2 is gone. Last seen: compute, minibatch 4, microbatch 1')\n"
    )
    run = odcrt("launch", "--nproc", 3, path, folder=tmp_path)
    assert run.code == 128 + signal.SIGKILL
    said = "RankLost: rank 2 is gone. Last seen: compute, minibatch 4, microbatch 1\n"
    assert run.err.endswith(
        "odcrt: error: rank 2 was killed by SIGKILL (by the kernel for lack of memory, perhaps)\n"
        f"rank 2 printed last: last words\nrank 0: {said}rank 1: {said}"
    )


def test_a_crash_shows_where_it_happened(script, tmp_path):
    path = script("if rank == 1:\n    os.kill(os.getpid(), signal.SIGSEGV)\n")
    run = odcrt("launch", "--nproc", 2, path, folder=tmp_path)
    assert run.code == 128 + signal.SIGSEGV
    summary = run.err[run.err.index("odcrt: error: ") :]
    assert summary.startswith("odcrt: error: rank 1 was killed by SIGSEGV\nrank 1 printed last: Fatal Python error:")
    assert 'script.py", line 8 in <module>' in summary


def test_a_rank_that_hangs_after_a_deadline_is_stopped_and_shows_its_stack(script, tmp_path):
    path = script(
        "from odcrt.errors import DeadlineExceeded\n"
        "meet('there')\n"
        "if rank == 0:\n"
        "    raise DeadlineExceeded('rank 1 is late: compute, minibatch 2')\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "time.sleep(100)\n"
    )
    # Another grace than that for a missed deadline would last longer than the test may.
    start_s = time.monotonic()
    run = odcrt("launch", "--nproc", 2, "--deadline", 1000, path, folder=tmp_path, timeout_s=40)
    assert run.code == 1
    assert time.monotonic() - start_s < 25
    assert '[rank 1]   File "' in run.err
    assert 'script.py", line 12 in <module>' in run.err
    assert "odcrt: error: rank 0 failed with exit code 1; rank 1 did not end in time and was stopped\n" in run.err
    assert run.err.endswith("odcrt.errors.DeadlineExceeded: rank 1 is late: compute, minibatch 2\n")


def test_logs_of_a_failed_run_are_kept_and_others_go(script, tmp_path):
    (tmp_path / "temporary").mkdir()
    options = {"folder": tmp_path, "TMPDIR": str(tmp_path / "temporary")}
    assert odcrt("launch", "--nproc", 1, script("print('fine')"), **options).code == 0
    assert list((tmp_path / "temporary").iterdir()) == []
    run = odcrt("launch", "--nproc", 1, script("print('oh')\nsys.exit(3)"), **options)
    kept = re.search(r"^odcrt: output of all ranks: (\S+)/rank-N.log$", run.err, re.MULTILINE)
    assert [str(path) for path in (tmp_path / "temporary").iterdir()] == [kept[1]]
    assert (Path(kept[1]) / "rank-0.log").read_text() == "oh\n"


# Ending early

SLEEPERS = (
    "import subprocess\n"
    "child = subprocess.Popen(['sleep', '300'])\n"
    "pathlib.Path(f'pids-{rank}').write_text(f'{os.getpid()} {child.pid}')\n"
    "meet('there')\n"
)


def pids_of(folder, ranks):
    """Processes of all ranks, and those that they have started."""
    wait_for(lambda: all((folder / f"there-{rank}").exists() for rank in range(ranks)), what="all ranks")
    return [int(pid) for rank in range(ranks) for pid in (folder / f"pids-{rank}").read_text().split()]


def test_what_ranks_have_started_ends_with_them(script, tmp_path):
    run = odcrt("launch", "--nproc", 2, script(SLEEPERS), folder=tmp_path)
    assert run.code == 0
    pids = pids_of(tmp_path, 2)
    assert len(pids) == 4
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_ends_all(number, script, tmp_path):
    with started_odcrt("launch", "--nproc", 2, script(SLEEPERS + "time.sleep(100)\n"), folder=tmp_path) as process:
        pids = pids_of(tmp_path, 2)
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert err.endswith(f"odcrt: stopped by {number.name}\n")
    assert "Traceback" not in err
    assert not any(map(is_alive, pids))


def test_nothing_outlives_a_launcher_that_is_killed(script, tmp_path):
    (tmp_path / "temporary").mkdir()
    path = script(SLEEPERS + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(100)\n")
    with started_odcrt("launch", "--nproc", 2, path, folder=tmp_path, TMPDIR=str(tmp_path / "temporary")) as process:
        pids = pids_of(tmp_path, 2)
        assert all(map(is_alive, pids))
        process.kill()
        process.communicate(timeout=20)
        wait_for(lambda: not any(map(is_alive, pids)), what="the end of all processes")
        # But for the logs, which are what is left to look at.
        wait_for(
            lambda: all(path.name.startswith("odcrt-logs-") for path in (tmp_path / "temporary").iterdir()),
            what="the removal of temporary files",
        )
