"""`odcsim run`: what it writes, what it prints, and one line, exit code 2 and no file for whatever is at fault."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
import yaml

from odcsim.errors import RunError

NUMBER = (int, float)
# The result document of a run: name -> type, or a mapping of more of them.
CASE = {
    "name": str,
    "sync": str,
    "policy": str,
    "overlap": str,
    "pad": bool,
    "minibatches": int,
    "seconds_per_minibatch": {"mean": NUMBER, "p50": NUMBER, "p95": NUMBER},
    "samples_per_second": NUMBER,
    "samples_per_second_per_rank": NUMBER,
    "tokens_per_second": NUMBER,
    "mfu": NUMBER,
    "utilization": NUMBER,
    "bubble_rate": NUMBER,
    "time_fractions": {
        "compute": NUMBER,
        "exposed_communication": NUMBER,
        "synchronization": NUMBER,
        "optimizer": NUMBER,
        "other": NUMBER,
    },
    "peak_memory_bytes": int,
    "fits": bool,
    "speedup": NUMBER,
    "speedup_ci95": list,
    "lower_bound_ratio": NUMBER,
}
RESULT = {
    "schema": str,
    "scenario": dict,
    "engine": str,
    "lengths": {"count": int, "mean": NUMBER, "p50": NUMBER, "p90": NUMBER, "p99": NUMBER, "max": int, "cv": NUMBER},
    "warnings": list,
    "cases": list,
}


def assert_shape(document, shape, place="result"):
    """Every name is there, and of its type; there may be more."""
    for name, kind in shape.items():
        assert name in document, f"{place}.{name}"
        if isinstance(kind, dict):
            assert_shape(document[name], kind, f"{place}.{name}")
        else:
            assert isinstance(document[name], kind), f"{place}.{name}"


def files_in(folder):
    """Every file below a folder, the scenario left out."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.name != "s.yaml"
    )


@pytest.fixture
def fails(odcsim, scenario_file, tmp_path):
    """Runs the small scenario with more arguments, which must fail cleanly; its message."""

    def message(*arguments, code=2, kept=()):
        ended = odcsim("run", scenario_file, "--out", tmp_path / "out", *arguments)
        assert (ended.code, ended.out) == (code, "")
        assert files_in(tmp_path) == list(kept)
        assert ended.err.startswith("odcsim: error: ")
        assert ended.err.endswith("\n")
        line = ended.err.removesuffix("\n")
        assert line.isprintable(), "more than one line, or control characters"
        return line.removeprefix("odcsim: error: ").replace(f"{tmp_path}/", "")

    return message


def test_files_and_table(odcsim, scenario_file, tmp_path):
    ended = odcsim("run", scenario_file, "--out", "out")
    assert (ended.code, ended.err) == (0, "")
    assert files_in(tmp_path) == ["out/small.html", "out/small.json"]
    assert "FSDP lb-micro" in ended.out
    assert "ODC lb-mini" in ended.out
    assert ended.out.splitlines()[-2:] == ["report: out/small.html", "result: out/small.json"]
    assert (tmp_path / "out" / "small.html").read_text().startswith("<!")


def test_reports_is_the_folder_by_default(odcsim, scenario_file, tmp_path):
    assert odcsim("run", scenario_file).code == 0
    assert files_in(tmp_path) == ["reports/small.html", "reports/small.json"]


def test_json_is_one_document_and_the_file(odcsim, scenario_file, tmp_path):
    ended = odcsim("run", scenario_file, "--json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (tmp_path / "reports" / "small.json").read_text()
    document = json.loads(ended.out)
    assert_shape(document, RESULT)
    assert document["schema"] == "odcsim.result/1"
    assert document["engine"] == "recurrence"
    assert len(document["cases"]) == 2
    for case in document["cases"]:
        assert_shape(case, CASE, "case")
        assert math.isclose(sum(case["time_fractions"].values()), 1, abs_tol=1e-12)
        assert case["utilization"] == case["time_fractions"]["compute"]
        assert case["bubble_rate"] == case["time_fractions"]["synchronization"]
        assert case["samples_per_second"] == pytest.approx(4 * case["samples_per_second_per_rank"])
    assert (document["cases"][0]["speedup"], document["cases"][0]["speedup_ci95"]) == (1, [1, 1])


def test_json_stays_one_document_with_warnings(odcsim, scenario_file):
    ended = odcsim("run", scenario_file, "--json", "--set", "cases.0.pad=true", "--set", "cluster.contention=true")
    warnings = [
        "cases.0.pad has no effect: lb-micro gives equal counts already",
        "cluster.contention has no effect: there is one node only",
    ]
    assert json.loads(ended.out)["warnings"] == warnings
    assert ended.err == "".join(f"odcsim: warning: {warning}\n" for warning in warnings)
    assert ended.code == 0


def test_a_single_minibatch_has_no_interval(odcsim, scenario_file):
    ended = odcsim("run", scenario_file, "--json", "--set", "workload.minibatches=1")
    assert json.loads(ended.out)["cases"][1]["speedup_ci95"] is None


@pytest.mark.parametrize("engine", ["auto", "recurrence", "events"])
def test_engines(odcsim, scenario_file, engine):
    ended = odcsim("run", scenario_file, "--json", "--engine", engine)
    assert json.loads(ended.out)["engine"] == engine.replace("auto", "recurrence")


def test_a_case_that_does_not_fit_is_a_result(odcsim, scenario_file):
    """No assertion and no error: a row that says by how much, and what would."""
    ended = odcsim("run", scenario_file, "--json", "--set", "model=qwen2.5-72b")
    case = json.loads(ended.out)["cases"][0]
    assert (ended.code, case["fits"]) == (0, False)
    assert case["memory"]["over_bytes"] == case["peak_memory_bytes"] - case["memory"]["capacity_bytes"] > 0
    assert "; would fit with cluster.nodes: " in case["memory"]["advice"]
    table = odcsim("run", scenario_file, "--set", "model=qwen2.5-72b")
    assert table.code == 0


def test_names_are_printed_as_they_are(odcsim, scenario_file, tmp_path):
    """Markup of the terminal's library, or of the page, is no markup."""
    name = "[red]bold[/red] <b>&amp;"
    ended = odcsim("run", scenario_file, "--set", f"cases.1.name={yaml.safe_dump(name)}")
    assert ended.code == 0
    assert name in ended.out
    page = (tmp_path / "reports" / "small.html").read_text()
    assert "<b>&amp;" not in page
    assert "&lt;b&gt;&amp;amp;" in page


def test_the_same_command_gives_the_same_bytes(scenario_file, tmp_path):
    """Whatever order Python's sets and dictionaries have in memory."""
    results = []
    for seed in ("1", "2"):
        out = tmp_path / f"out{seed}"
        program = [sys.executable, "-c", "from odcsim.cli import main; main()"]
        command = [*program, "run", str(scenario_file), "--out", str(out), "--json"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        ended = subprocess.run(command, env=environment, capture_output=True, check=True)
        results.append((ended.stdout, (out / "small.json").read_bytes(), (out / "small.html").read_bytes()))
    assert results[0] == results[1]


def test_another_seed_gives_another_result(odcsim, scenario_file):
    lengths = ["--set", "workload.lengths={uniform: {min: 1, max: 8192}}"]
    one, other = (
        odcsim("run", scenario_file, "--json", *lengths, "--set", f"workload.seed={seed}").out for seed in (0, 1)
    )
    seconds = [json.loads(out)["cases"][0]["seconds_per_minibatch"]["mean"] for out in (one, other)]
    assert seconds[0] != seconds[1]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("nam=x", "s.yaml: nam: 'x': unknown key; did you mean 'name'?"),
        ("cluster.gpus=8", "s.yaml: cluster.gpus: 8: unknown key; did you mean 'gpu'?"),
        (
            "cluster.intra_node.bandwith=1",
            "s.yaml: cluster.intra_node.bandwith: 1: unknown key; did you mean 'bandwidth'?",
        ),
        ("cases.0.polcy=x", "s.yaml: cases.0.polcy: 'x': unknown key; did you mean 'policy'?"),
        ("workload.minibatches=many", "s.yaml: workload.minibatches: 'many': must be a whole number"),
        ("model=qwen2.5-1.4b", "s.yaml: model: 'qwen2.5-1.4b': unknown model; did you mean 'qwen2.5-14b'?"),
        ("cluster.gpu=a101", "s.yaml: cluster.gpu: 'a101': unknown GPU; did you mean 'a100'?"),
        ("cases.0.policy=lb-mirco", "s.yaml: cases.0.policy: 'lb-mirco': unknown policy; did you mean 'lb-micro'?"),
        ("cases.0.sync=osc", "s.yaml: cases.0.sync: 'osc': allowed: 'fsdp' or 'odc'"),
        ("overlap=all", "s.yaml: overlap: 'all': allowed: 'prefetch', 'gather-only' or 'none'"),
        ("cluster.intra_node.bandwidth=80 GX", "s.yaml: cluster.intra_node.bandwidth: '80 GX': unknown unit 'GX'"),
        ("cluster.rank_speeds={4: 0.5}", "s.yaml: cluster: rank_speeds names rank 4; ranks here are 0 to 3"),
        (
            "cases.0.policy=lb-mini",
            "s.yaml: cases.0.policy: 'lb-mini': lb-mini gives ranks unequal numbers of microbatches",
        ),
        ("workload.minibatches=1000000000000", "s.yaml: workload.minibatches: 1000000000000: must be at most 1000000"),
        ("cluster.nodes=1000000000", "s.yaml: cluster.nodes: 1000000000: must be at most 131072"),
        (f"workload.max_tokens=1{'0' * 400}", "s.yaml: workload.max_tokens: a number of 1329 bits: must be at most"),
        (
            "workload.samples_per_rank=40000000",
            "s.yaml: workload: 3 minibatches x 160000000 samples = 480000000 samples",
        ),
        ("compute.fitted.quadratic=.nan", "s.yaml: compute.fitted.quadratic: nan: must be finite"),
        ("compute.fitted.quadratic=1e308", "s.yaml: compute: compute of 8192 tokens would take 6.5536e+306 s; at most"),
        (
            "workload.lengths={trace: no.csv}",
            "no.csv: workload.lengths.trace: no such file; give the path of a length trace",
        ),
        ("workload.lengths={trace: .}", "is a folder; give the path of a length trace"),
        ("workload.max_tokens=3000", "s.yaml: workload.oversize: 'error': minibatch 0: sample "),
        ("name=../../x", "s.yaml: name: '../../x': allowed: 1 to 100 letters, digits"),
        ('name="\\e[31mred"', r"s.yaml: name: '\x1b[31mred': allowed: 1 to 100 letters, digits"),
        ("name='[red]'", "s.yaml: name: '[red]': allowed: 1 to 100 letters, digits"),
        ("workload.seed", "--set: 'workload.seed': allowed: key=value, such as workload.seed=1"),
        ("cases.7.policy=x", "--set: 'cases.7.policy=x': cases.7: allowed: a position from 0 to 1"),
        ("workload.seed=[", "--set: 'workload.seed=[': the value is not valid YAML"),
    ],
)
def test_a_setting_at_fault(fails, override, message):
    assert message in fails("--set", override)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "s.yaml: allowed: a mapping with the keys name, model, "),
        (b"- a\n", "s.yaml: allowed: a mapping with the keys name, model, "),
        (b"name: \xff\xfe", "s.yaml: is not UTF-8 text; give the path of a scenario file"),
        (b"name: x\nmodel: [\ncases: y", "s.yaml: line 3: not valid YAML: "),
        (b"name: x\nname: y\n", "s.yaml: line 2: not valid YAML: key 'name' is given twice"),
        (b"a: " + b"[" * 100_000, "s.yaml: line 1: not valid YAML: nested more than 50 deep"),
        (
            b"a0: &a0 [x, x]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 40)),
            "s.yaml: line 19: not valid YAML: more than 1000000 values, those that aliases repeat included",
        ),
    ],
    ids=["empty", "list", "not utf-8", "syntax", "twice", "deep", "bomb"],
)
@pytest.mark.timeout(10)
def test_a_file_at_fault(fails, scenario_file, content, message):
    scenario_file.write_bytes(content)
    assert fails().startswith(message)


def test_a_length_file_at_fault(fails, tmp_path):
    lengths = tmp_path / "lengths.csv"
    for text, message in (
        ("", "lengths.csv: workload.lengths.trace: holds no length; "),
        ("5\n0\n", "lengths.csv: line 2: '0': must be a whole number of tokens"),
        ("5\n-3\n", "lengths.csv: line 2: '-3': must be a whole number of tokens"),
        ("5\nabc\n", "lengths.csv: line 2: 'abc': must be a whole number of tokens"),
    ):
        lengths.write_text(text)
        assert fails("--set", "workload.lengths={trace: lengths.csv}", kept=["lengths.csv"]).startswith(message)


@pytest.mark.parametrize("missing", ["no.yaml", "no/such/folder.yaml"])
def test_a_missing_scenario(odcsim, tmp_path, missing):
    ended = odcsim("run", missing)
    assert ended == (2, "", f"odcsim: error: {missing}: no such file; give the path of a scenario file\n")
    assert files_in(tmp_path) == []


def test_a_folder_for_a_scenario(odcsim):
    assert odcsim("run", ".") == (2, "", "odcsim: error: .: is a folder; give the path of a scenario file\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "evnts"], "'evnts' is not one of 'auto', 'recurrence', 'events'; see odcsim run --help"),
        (["--engin", "events"], "no such option: --engin"),
        (["extra"], "got unexpected extra argument"),
    ],
)
def test_a_command_line_at_fault(fails, arguments, message):
    assert message in fails(*arguments)


@pytest.mark.parametrize("option", ["--set", "--engine", "--out"])
def test_an_option_without_its_value(odcsim, scenario_file, tmp_path, option):
    ended = odcsim("run", scenario_file, option)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("odcsim: error: ")
    assert ended.err.count("\n") == 1
    assert f"{option}" in ended.err
    assert files_in(tmp_path) == []


def test_no_scenario(odcsim):
    assert odcsim("run") == (2, "", "odcsim: error: missing argument 'SCENARIO'; see odcsim run --help\n")


def test_contention_needs_the_events_engine(fails):
    changes = ["--set", "cluster.nodes=2", "--set", "cluster.contention=true", "--set", "cluster.inter_node.ports=1"]
    message = fails("--engine", "recurrence", *changes)
    assert message == "--engine: 'recurrence': models no contention; allowed here: events or auto"


def test_out_is_a_file(odcsim, scenario_file, tmp_path, monkeypatch):
    """Said before anything is simulated."""
    (tmp_path / "file").write_text("old")
    monkeypatch.setattr("odcsim.simulation.simulate", None)
    ended = odcsim("run", scenario_file, "--out", "file")
    assert ended == (2, "", "odcsim: error: --out: 'file': is no folder; allowed: a folder, which is made if missing\n")
    ended = odcsim("run", scenario_file, "--out", "file/below")
    assert (ended.code, ended.out) == (2, "")
    assert "file is no folder; allowed: a folder, which is made if missing" in ended.err
    assert (tmp_path / "file").read_text() == "old"


def test_out_cannot_be_written_to(fails, monkeypatch):
    monkeypatch.setattr("odcsim.files.os.access", lambda _, mode: not mode & os.W_OK)
    assert fails().startswith("--out: 'out': cannot write to ")


@pytest.mark.parametrize("blocked", ["small.json", "small.html"])
def test_neither_file_is_written_if_one_cannot_be(odcsim, scenario_file, tmp_path, blocked):
    (tmp_path / "out" / blocked).mkdir(parents=True)
    ended = odcsim("run", scenario_file, "--out", "out")
    assert ended == (2, "", f"odcsim: error: out/{blocked}: is a folder; a file is to be written here\n")
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("failing", ["odcsim.report.render_page", "odcsim.simulation.simulate"])
def test_a_run_that_fails_ends_with_1_and_writes_nothing(fails, monkeypatch, failing):
    def fail(*arguments, **options):
        raise RunError("out of luck")

    monkeypatch.setattr(failing, fail)
    assert fails(code=1) == "out of luck"


def test_progress_is_shown_on_a_terminal_only(odcsim, scenario_file, monkeypatch):
    assert odcsim("run", scenario_file).err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ended = odcsim("run", scenario_file, "--json")
    assert "simulating" in ended.err
    json.loads(ended.out)
