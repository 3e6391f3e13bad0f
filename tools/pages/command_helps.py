"""Writes moor/command_helps.py: the first sentences of the commands' helps, as data."""

import json
from collections.abc import Iterable
from pathlib import Path

from moor.commands import COMMANDS, command_of

FILE = Path(__file__).parents[2] / "moor" / "command_helps.py"
_HEAD = '''"""What `moor --help` says of each command, so that it need not import them. `python -m tools.pages` writes this file."""

HELPS = {
'''


def helps(names: Iterable[str]) -> dict[str, str]:
    return {name: command_of(name).help.split("\n\n")[0].replace("\n", " ") for name in names}


def page() -> str:
    lines = [f"    {json.dumps(name)}: {_quoted(text)},\n" for name, text in helps(COMMANDS).items()]
    return f"{_HEAD}{''.join(lines)}}}\n"


def _quoted(text: str) -> str:
    """The text as a literal on one line."""
    return json.dumps(text, ensure_ascii=False)
