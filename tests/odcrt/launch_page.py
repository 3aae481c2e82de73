"""What tests of `odcrt launch` run: the commands of docs/launch.md, and a small model for scenarios of their own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

__all__ = ["COMMANDS", "PAGE", "SCENARIOS", "TOY_MODEL", "command_on", "scenario_in"]

_ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (_ROOT / "docs" / "launch.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^odcrt (launch .*?)(?:\s*#.*)?$", PAGE, flags=re.MULTILINE)
SCENARIOS = sorted((_ROOT / "scenarios" / "runtime").glob("*.yaml"))

TOY_MODEL = {
    "name": "toy",
    "layers": 2,
    "hidden": 32,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 16,
    "ffn": 48,
    "vocab": 64,
}


def command_on(scenario: str) -> list[str]:
    """The page's command that runs a scenario, by its file's name; what `odcrt` gets."""
    (command,) = (words for words in map(shlex.split, COMMANDS) if Path(words[-1]).name == scenario)
    return command


def scenario_in(folder: Path, scenario: str) -> Path:
    """Lay what a command on a scenario needs into the folder that it runs in; the scenario's file there."""
    for name in ("scenarios", "traces"):
        (folder / name).symlink_to(_ROOT / name, target_is_directory=True)
    return folder / "scenarios" / "runtime" / scenario
