"""The command line in-process: what a command prints, and how it ends."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest
import yaml

from odcsim.cli import main


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def odcsim(monkeypatch, capsys, tmp_path):
    """Runs a command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def ended(*arguments):
        monkeypatch.setattr(sys, "argv", ["odcsim", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        return Ended(caught.value.code or 0, *capsys.readouterr())

    return ended


@pytest.fixture
def scenario_file(tmp_path, document):
    """The small document as s.yaml in the folder that commands run in."""
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path
