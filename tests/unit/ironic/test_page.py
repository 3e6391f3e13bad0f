"""docs/bare-metal.md: its settings exist and fit together, and its log lines are those that the code writes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.addresses import ADDRESSES
from ironic_sync.settings import IRONIC_DAEMONS
from kit.keystone import OPENSTACK
from tools.pages.commands import ROOT

PAGE = (ROOT / "docs" / "bare-metal.md").read_text()
SOURCES = "\n".join(
    file.read_text()
    for room in ("kit", "bus", "ironic_sync")
    for file in sorted((ROOT / room).rglob("*.py"))
    if "migrations" not in Path(file).parts
)


def blocks() -> Iterator[dict[str, str]]:
    """The variables that each block of the page exports."""
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL):
        yield dict(re.findall(r"export (\w+)=(\S+)", block))


def test_every_variable_of_the_page_is_a_setting() -> None:
    known = {
        each.variable(field) for each in (IRONIC_DAEMONS, OPENSTACK, ADDRESSES) for field in each.settings
    }

    assert {*re.findall(r"\bMOOR_(?:IRONIC|OPENSTACK)_[A-Z_]*[A-Z]", PAGE)} - known == set()


@pytest.mark.parametrize("block", [*blocks()], ids=lambda block: ",".join(block)[:60])
def test_the_variables_of_a_block_fit_together(block: dict[str, str]) -> None:
    ADDRESSES.read(block)
    IRONIC_DAEMONS.read(block)
    OPENSTACK.read(block)


def test_the_page_names_every_setting_of_signing_in_and_of_the_names() -> None:
    of_names = [IRONIC_DAEMONS.variable(field) for field in ("exchange", "topics", "queue")]
    every = [*of_names, *map(OPENSTACK.variable, OPENSTACK.settings)]

    assert [variable for variable in every if variable not in PAGE] == []


def test_every_line_of_the_log_is_in_the_code() -> None:
    lines = re.findall(r"^\| `([^`]+)` \|", PAGE.partition("## What the log says")[2], re.MULTILINE)
    # Each text of the code is one line without the values in it.
    texts = _plain(re.sub(r'"\s*f?"', "", SOURCES))
    parts = [
        (line, part)
        for line in lines
        for part in re.split(r"\.\.\.|: |\b[NM]\b|\b401 to\b|\bwith 403\b|\bGET\b", line)
    ]
    missing = [(line, part) for line, part in parts if len(_plain(part)) > 3 and _plain(part) not in texts]

    assert len(lines) > 15
    assert missing == []


def _plain(text: str) -> str:
    without_values = re.sub(r"%[a-z]|\{[^{}]*\}|[^\w']", " ", text)
    return " ".join(without_values.split())
