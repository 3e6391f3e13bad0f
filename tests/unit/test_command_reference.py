"""The reference of the commands has every command and option of the code, and explains each."""

import re

from moor.commands import names
from tools.pages.command_reference import page


def test_every_command_is_there_and_every_option_is_explained() -> None:
    text = page()

    missing = [name for name in names() if not re.search(rf"^### `moor {name}\b", text, re.MULTILINE)]
    assert missing == []
    assert re.findall(r"^\| `--[^|]*\|\s*\|.*$", text, re.MULTILINE) == []
