"""The documentation holds: its examples run and print what it says, its tables miss nothing and invent nothing.

How pages are written. A page is read from its top: its examples share one working folder, which holds `scenarios/` and
`traces/`, and its Python examples share their names. By the language of a fenced block:

    python   runs; an `output` block right after it is what it prints
    console  `$ odcsim ...` runs and must succeed, unless the `$ echo $?` after it shows another exit code; what stands
             under a command is what it prints, where three dots stand for any text, or on a line of their own for any
             lines
    yaml     a whole scenario, saved if its first line is `# NAME.yaml`; or sections that are laid over those of
             scenarios/quickstart.yaml. Names are looked up and files read.
    sh       is not run, but the targets that it gives to `make` are there
    text     is not run
"""

from __future__ import annotations

import copy
import io
import re
import shlex
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import typer
import yaml
from pydantic import BaseModel

from odcsim import catalog, load_scenario, simulate
from odcsim.analysis.validate import CaseComparison, Validation
from odcsim.analysis.validation_document import validation_document
from odcsim.cli import main
from odcsim.cli.app import app
from odcsim.costs.memory import MemoryModel
from odcsim.lengths import LengthSpec, MixtureComponent
from odcsim.model_shape import ModelShape
from odcsim.policies import find_policy, policy_names
from odcsim.resolve import resolve
from odcsim.results import TimeFractions
from odcsim.scenario import Scenario, parse_scenario
from odcsim.units import parse_quantity

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
QUICKSTART = ROOT / "scenarios" / "quickstart.yaml"
LANGUAGES = {"python", "output", "console", "yaml", "sh", "text"}


# Reading pages


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is the number of its first line."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page):
    """The fenced blocks of a page, in order."""
    blocks, opened, lines = [], None, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.startswith("```"):
            lines.append(line)
        elif opened is None:
            opened, lines = (number + 1, line.removeprefix("```").strip()), []
        else:
            blocks.append(Block(page, *opened, "".join(f"{text}\n" for text in lines)))
            opened = None
    assert opened is None, f"{page.name}:{opened[0]}: the block is never closed"
    return blocks


def prose_of(page):
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def headings_of(page):
    return [line.lstrip("#").strip() for line in prose_of(page).splitlines() if re.match(r"#{1,6} ", line)]


def tables_of(page):
    """Every table as (the heading above it, its columns' names, its rows); code quotes are taken off the cells."""
    tables, heading, previous = [], "", ""
    for line in prose_of(page).splitlines():
        if re.match(r"#{1,6} ", line):
            heading = line.lstrip("#").strip()
        if line.startswith("|"):
            cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if not previous.startswith("|"):
                tables.append((heading, cells, []))
            elif not set(line) <= set("|-: "):
                tables[-1][2].append(cells)
        previous = line
    return tables


def rows_of(page_name, first_column):
    """Rows of all tables of a page whose first column has that name: {heading: [{column: cell}]}."""
    found = {}
    for heading, columns, rows in tables_of(ROOT / "docs" / page_name):
        if columns[0] == first_column:
            found.setdefault(heading, []).extend(dict(zip(columns, row, strict=True)) for row in rows)
    return found


def plain(cell):
    """A cell without code quotes."""
    return cell.strip("`")


# Running examples


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder like the project's top, in which examples may write."""
    shutil.copytree(ROOT / "scenarios", tmp_path / "scenarios")
    (tmp_path / "traces").symlink_to(ROOT / "traces", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples(page, folder):
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = None
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{block.where}: {block.language!r} is none of {sorted(LANGUAGES)}"
        if block.language == "output":
            assert printed is not None, f"{block.where}: no Python example stands before this output"
            assert_printed(block.text, printed, where=block.where)
        printed = None
        if block.language == "python":
            printed = run_python(block, names)
        elif block.language == "console":
            run_console(block)
        elif block.language == "yaml":
            check_yaml(block, folder)
        elif block.language == "sh":
            check_make_targets(block)


def run_python(block, names):
    """Run a block; return what it prints. Its lines have their numbers of the page in tracebacks."""
    code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(code, names)  # noqa: S102 - our own pages
    return printed.getvalue()


def run_console(block):
    """Run the commands of a block, and compare exit codes and what they print."""
    steps = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert steps[0] == "", f"{block.where}: begins with something other than a command"
    code = shown = 0
    for number, step in enumerate(steps[1:], start=1):
        command, _, expected = step.partition("\n")
        where = f"{block.where}: {command}"
        if command == "echo $?":
            shown = int(expected)
            assert code == shown, f"{where}: {code}"
            continue
        code, printed = run_odcsim(command, where=where)
        following = steps[number + 1] if number + 1 < len(steps) else ""
        assert code == 0 or following.startswith("echo $?\n"), f"{where}: exit code {code}\n{printed}"
        if expected.strip():
            assert_printed(expected, printed, where=where)


def run_odcsim(command, *, where):
    """Exit code, and both outputs together, of an odcsim command that may end in `> FILE`."""
    words = shlex.split(command, comments=True)
    assert words[0] == "odcsim", f"{where}: only odcsim is run here"
    target = None
    if ">" in words:
        words, target = words[: words.index(">")], Path(words[words.index(">") + 1])
    printed, arguments = io.StringIO(), sys.argv
    sys.argv = words
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = arguments
    if target is not None:
        target.write_text(printed.getvalue(), encoding="utf-8")
    return code, printed.getvalue()


def assert_printed(expected, printed, *, where):
    """Compare line by line, ends of lines aside; three dots stand for any text, alone on a line for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else ".*?".join(map(re.escape, line.rstrip().split("..."))) + r"\n"
        for line in expected.splitlines()
    )
    stripped = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    assert re.fullmatch(pattern, stripped), f"{where} prints\n{stripped}\nand not\n{expected}"


def check_yaml(block, folder):
    document = yaml.safe_load(block.text)
    assert isinstance(document, dict), f"{block.where}: not a mapping"
    base_folder = folder / "scenarios"
    named = re.match(r"# ([\w.-]+\.yaml)\n", block.text)
    if named:
        base_folder = folder
        (folder / named[1]).write_text(block.text, encoding="utf-8")
    if not {"model", "cases"} <= set(document):
        document = laid_over(yaml.safe_load(QUICKSTART.read_text(encoding="utf-8")), document)
    resolve(parse_scenario(document, file=block.where), base_folder=base_folder, file=block.where)


def check_make_targets(block):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([\w-]+)", block.text, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"{block.where}: no target {target!r}"


def laid_over(document, sections):
    """A scenario whose sections take over the keys of others; what is no section of keys is replaced."""
    merged = dict(document)
    for key, value in sections.items():
        takes_over = key in {"cluster", "workload", "training", "on_demand"}
        merged[key] = {**merged.get(key, {}), **value} if takes_over else value
    return merged


# Links


def anchor_of(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in map(anchor_of, headings_of(file)), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_are_named_are_there(page):
    named = re.findall(r"(?<![\w/.])(?:benchmarks|docs|odcsim|scenarios|tests|traces)/[\w./-]*\w", prose_of(page))
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing


def test_the_index_leads_to_every_page():
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}


# scenario.md: every key of the schema, with defaults and examples that hold

# What a section needs before its keys can be set.
NEEDED = {
    "workload.lengths.lognormal": {"workload": {"lengths": {"lognormal": {"mean": 5, "sigma": 1}}}},
    "workload.lengths.uniform": {"workload": {"lengths": {"uniform": {"min": 1, "max": 5}}}},
    "workload.lengths.mixture.N": {"workload": {"lengths": {"mixture": [{"weight": 1, "constant": 5}]}}},
    "compute.analytic": {"compute": {"analytic": {}}},
    "compute.fitted": {"compute": {"fitted": {"quadratic": 1, "linear": 1, "per_tokens": 1}}},
    "cluster.slowdowns": {"cluster": {"slowdowns": {"probability": 0.5, "factor": 2}}},
}
# Keys of a section of which exactly one is given.
EXCLUSIVE = {
    "workload": {"samples_per_rank", "samples_per_minibatch"},
    "workload.lengths": set(LengthSpec.model_fields),
    "compute": {"analytic", "fitted", "calibrated"},
}
SMALLEST = {
    "name": "smallest",
    "model": "qwen2.5-0.5b",
    "cluster": {"gpu": "a100", "nodes": 4},
    "workload": {"lengths": {"constant": 5}, "samples_per_rank": 1, "max_tokens": 5},
    "compute": {"analytic": {}},
    "cases": [{"sync": "odc", "policy": "lb-mini"}],
}


def section_in(annotation):
    """The section of keys that a field holds, and whether it holds a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for argument in get_args(annotation):
        section, listed = section_in(argument)
        if section is not None:
            return section, listed or getattr(annotation, "__origin__", None) is tuple
    return None, False


def sections_of(model, path=""):
    """Every section of the schema: (dotted path, fields)."""
    own = dict(model.model_fields)
    if model is MixtureComponent:  # the sources are LengthSpec's, and stand there
        own = {name: field for name, field in own.items() if name not in LengthSpec.model_fields}
    yield path or "Top level", own
    for name, field in own.items():
        section, listed = section_in(field.annotation)
        if section is not None:
            yield from sections_of(section, ".".join(filter(None, (path, name, "N" if listed else ""))))


SECTIONS = dict(sections_of(Scenario))
KEYS = [(section, name) for section, own in SECTIONS.items() for name in own]


def documented_keys():
    return {
        section: {plain(row["key"]): row for row in rows} for section, rows in rows_of("scenario.md", "key").items()
    }


def test_scenario_page_lists_every_key_and_no_other():
    documented = {section: set(rows) for section, rows in documented_keys().items()}
    assert documented == {section: set(own) for section, own in SECTIONS.items()}


def scenario_with(section, name, **given):
    """A small scenario whose key `name` of a section is `given["value"]`, or is left out where nothing is given."""
    document = laid_over(copy.deepcopy(SMALLEST), copy.deepcopy(NEEDED.get(section, {})))
    holder = document
    for part in [] if section == "Top level" else section.split("."):
        holder = holder[0] if part == "N" else holder.setdefault(part, {})
    excluded = EXCLUSIVE.get(section, set())
    for key in excluded if name in excluded else {name}:
        holder.pop(key, None)
    if given:
        holder[name] = given["value"]
    return parse_scenario(document)


@pytest.mark.parametrize(("section", "name"), KEYS)
def test_scenario_page_default_and_example_hold(section, name):
    row = documented_keys()[section][name]
    field = SECTIONS[section][name]
    scenario_with(section, name, value=yaml.safe_load(plain(row["example"])))
    if field.is_required():
        assert row["default"] == "required"
    elif name in EXCLUSIVE.get(section, ()):
        assert row["default"] == "not set"
        assert field.default is None
    else:
        default = None if row["default"] == "not set" else yaml.safe_load(plain(row["default"]))
        assert scenario_with(section, name, value=default) == scenario_with(section, name)


def test_scenario_page_units_hold():
    rows = [row for rows in rows_of("scenario.md", "quantity").values() for row in rows]
    assert {plain(row["held in"]) for row in rows} == {"bytes", "bytes/s", "FLOP/s", "seconds"}
    for row in rows:
        for example in row["examples"].split(", "):
            written, number = (plain(part.strip()) for part in example.split("="))
            assert parse_quantity(written, plain(row["held in"])) == pytest.approx(float(number)), example


# metrics.md and model.md: every figure of a result


def flat(document, prefix=""):
    """Dotted keys of a nested mapping."""
    for key, value in document.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


@pytest.fixture(scope="module")
def result_document():
    result = simulate(load_scenario(QUICKSTART, overrides=["workload.minibatches=2"]), base_folder=QUICKSTART.parent)
    return result.to_document()


def test_metrics_page_lists_every_figure_and_no_other(result_document):
    documented = {
        heading: [plain(row["figure"]) for row in rows] for heading, rows in rows_of("metrics.md", "figure").items()
    }
    of_run = documented.pop("The run")
    assert sorted(of_run) == sorted({*flat({**result_document, "scenario": None, "cases": None})})
    of_case = [figure for figures in documented.values() for figure in figures]
    assert sorted(of_case) == sorted({key for case in result_document["cases"] for key in flat(case)})


def test_model_page_lists_every_part_of_memory():
    shape = ModelShape(name="tiny", layers=1, hidden=1, heads=1, kv_heads=1, head_dim=1, ffn=1, vocab=1)
    memory = MemoryModel(
        shape=shape, ranks=1, param_bytes=2, reduce_bytes=4, optimizer="sgd", recompute=False, fused_loss=False
    )
    parts = memory.parts_bytes(tokens=1, on_demand=True, published_bytes=2, gather_bytes=2)
    assert [plain(row["part"]) for row in rows_of("model.md", "part")["Memory"]] == list(parts)


# The other pages


def test_run_page_lists_every_command_and_option():
    commands = typer.main.get_command(app).commands
    documented = {plain(row["command"]).split()[1] for rows in rows_of("run.md", "command").values() for row in rows}
    assert documented == set(commands)
    options = {plain(row["option"]).split()[0] for rows in rows_of("run.md", "option").values() for row in rows}
    known = {option for parameter in commands["run"].params for option in parameter.opts if option.startswith("--")}
    assert options == {*known, "--help"}


@pytest.mark.parametrize("command", ["calibrate", "ingest", "validate"])
def test_page_of_a_command_lists_every_option(command):
    (rows,) = [found for heading, found in rows_of(f"{command}.md", "option").items() if heading == "Options"]
    options = {plain(row["option"].split(", ")[0]).split()[0] for row in rows}
    parameters = typer.main.get_command(app).commands[command].params
    known = {option for parameter in parameters for option in parameter.opts if option.startswith("--")}
    assert options == {*known, "--help"}


def test_validate_page_lists_every_key_of_its_document():
    case = CaseComparison(
        **dict.fromkeys(("label", "sync", "policy", "transport"), "any"),
        ranks=1,
        runs=("run",),
        is_fitted=False,
        minibatches=(0,),
        predicted_s_N=np.ones(1),
        measured_s_RN=np.ones((1, 1)),
        **dict.fromkeys(("predicted", "measured"), TimeFractions(1.0, 0.0, 0.0, 0.0, 0.0)),
        predicted_peak_bytes=None,
        measured_peak_bytes_R=(),
    )
    document = validation_document(Validation("any", (case,), ()))
    expected = {key for key in document if key != "summary"} | {f"summary.{key}" for key in document["summary"]}
    expected |= {f"cases.{key}" for key in document["cases"][0]}
    (rows,) = rows_of("validate.md", "key").values()
    assert {plain(key) for row in rows for key in row["key"].split(", ")} == expected


def test_policies_page_has_every_policy():
    (rows,) = rows_of("policies.md", "policy").values()
    documented = {plain(row["policy"]): row["equal counts"] for row in rows}
    assert documented == {name: "yes" if find_policy(name).equal_counts else "no" for name in policy_names()}
    assert set(policy_names()) <= set(headings_of(ROOT / "docs" / "policies.md"))


def test_lengths_page_has_every_kind_of_source():
    documented = [plain(row["source"]) for rows in rows_of("lengths.md", "source").values() for row in rows]
    assert sorted(documented) == sorted(LengthSpec.model_fields)


def test_catalog_page_lists_every_figure_of_a_gpu_and_size_of_a_model():
    tables = rows_of("catalog.md", "key")
    assert {plain(row["key"]) for row in tables["GPUs"]} == {"base", "name", *catalog._FIGURES}
    shape = {plain(row["key"]): plain(row["default"]) for row in tables["Models"]}
    assert list(shape) == [field.name for field in fields(ModelShape)]
    assert {name for name, default in shape.items() if default == "false"} == {
        field.name for field in fields(ModelShape) if field.default is False
    }
