"""The `odcrt` command line: help, and one line with exit code 2 for whatever is wrong before a rank is started."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest
import yaml

from odcrt import cli

SCENARIO = {
    "name": "small",
    "model": {"name": "toy", "layers": 1, "hidden": 8, "heads": 2, "kv_heads": 1, "head_dim": 4, "ffn": 8, "vocab": 16},
    "cluster": {"gpu": "a100", "gpus_per_node": 2},
    "workload": {"lengths": {"constant": 8}, "samples_per_rank": 1, "max_tokens": 8, "minibatches": 2},
    "cases": [{"sync": "odc", "policy": "lb-mini"}],
}


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the program in an empty folder, as if torch were there: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(cli, "find_spec", lambda name: ModuleSpec(name, None))
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SCENARIO))
    (tmp_path / "script.py").write_text("")
    (tmp_path / "folder").mkdir()

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["odcrt", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return run


def test_help_without_a_command(command):
    code, out, err = command()
    assert (code, err) == (0, "")
    assert "odcrt launch scenarios/runtime/two-ranks.yaml" in out
    assert "launch" in out


def test_help_of_launch_names_every_option_and_examples(command):
    code, out, _ = command("launch", "--help")
    assert code == 0
    for option in (
        "--nproc N",
        "--record DIR",
        "--window FIRST:COUNT",
        "--log-dir DIR",
        "--prefix",
        "--deadline SECONDS",
        "--json",
        "--out DIR",
        "--set KEY=VALUE",
    ):
        assert option in out
    assert "odcrt launch --nproc 2 train.py --learning-rate 1e-4" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("launch", "missing argument 'SCENARIO|SCRIPT'; see odcrt launch --help"),
        ("lunch", "no such command 'lunch'"),
        ("launch --nproc 0 script.py", "invalid value for '--nproc': "),
        ("launch --nproc two script.py", "invalid value for '--nproc': "),
        ("launch --deadline 0 script.py", "invalid value for '--deadline': "),
        ("launch --prefix some script.py", "invalid value for '--prefix': "),
        ("launch missing.py", "TARGET: 'missing.py': no such file; give a Python script, or a scenario (.yaml)"),
        ("launch folder", "TARGET: 'folder': is a folder; give a Python script, or a scenario (.yaml)"),
        ("launch --json script.py", "--json: is for scenarios (.yaml); options of a script come after it"),
        ("launch --set a=1 script.py", "--set: is for scenarios"),
        ("launch --out x script.py", "--out: is for scenarios"),
        ("launch --window 0:1 script.py", "--window: '0:1': has no effect without --record DIR"),
        ("launch --record r --window 3 script.py", "--window: '3': allowed: FIRST:COUNT"),
        ("launch --record r --window 1:0 script.py", "--window: '1:0': allowed: FIRST:COUNT"),
        ("launch --record script.py script.py", "--record: 'script.py': is no folder"),
        ("launch --log-dir script.py script.py", "--log-dir: 'script.py': is no folder"),
        ("launch missing.yaml", "missing.yaml: no such file; give the path of a scenario file"),
        ("launch small.yaml more", "'more': a scenario takes no arguments; keys are set with --set KEY=VALUE"),
        ("launch small.yaml --bad", "no such option: --bad"),
        ("launch small.yaml --out script.py", "--out: 'script.py': is no folder"),
        ("launch small.yaml --record script.py/x", "--record: 'script.py/x': /"),
        ("launch small.yaml --set workload.sed=1", "small.yaml: workload.sed: 1: unknown key; did you mean 'seed'?"),
        (
            "launch small.yaml --set cases.0.sync=fsdp",
            "small.yaml: cases.0.policy: 'lb-mini': lb-mini gives ranks uneq",
        ),
        (
            "launch small.yaml --set workload.max_tokens=7",
            "small.yaml: workload.oversize: 'error': minibatch 0: sample 0",
        ),
        ("launch small.yaml --set model=qwen2.5-72b", "small.yaml: model: 'qwen2.5-72b': needs about 1."),
        ("launch small.yaml --set cluster.nodes=2", "small.yaml: cluster.nodes: 2: ranks run on this host alone"),
        ("launch small.yaml --set runtime.device=cuda", "small.yaml: runtime.device: 'cuda': not available: this runt"),
        ("launch small.yaml --set runtime.transport=cuda", "small.yaml: runtime.transport: 'cuda': not available"),
        ("launch small.yaml --set training.param_dtype=fp16", "small.yaml: training.param_dtype: 'fp16': not availabl"),
        ("launch small.yaml --record r --window 2:9", "--window: '2:9': no such minibatch; the scenario has 2, from 0"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(arguments, told, command):
    code, out, err = command(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"odcrt: error: {told}"), err
    assert err.count("\n") == 1
    assert err.endswith("\n")


def test_one_process_a_rank_takes_several_nodes_to_one_host(command):
    """With --nproc the scenario's cluster is this host; what is wrong then is something else."""
    code, _, err = command(
        "launch", "small.yaml", "--nproc", "3", "--set", "cluster.nodes=2", "--set", "model=qwen2.5-72b"
    )
    assert code == 2
    assert " on 3 ranks, and " in err


def test_without_torch_a_scenario_says_how_to_install_it(command, monkeypatch):
    monkeypatch.setattr(cli, "find_spec", lambda _: None)
    code, out, err = command("launch", "small.yaml")
    assert (code, out) == (1, "")
    assert err == ("odcrt: error: PyTorch is not installed; the runtime needs it: pip install 'odcsim[rt]'\n")


def test_ranks_read_their_job_without_the_schema_of_scenarios():
    """They start while nothing else happens, and pydantic would take a tenth of that time."""
    code = (
        "import sys, odcrt.workload.job; print([name for name in ('pydantic', 'yaml', 'torch') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert ended.stdout == "[]\n"
