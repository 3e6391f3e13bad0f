"""`moor --help` knows the commands' helps without importing the commands; and a plain command imports no worker."""

import subprocess
import sys

from moor.commands import command_of
from moor.settings import TABLES
from moor.worker_settings import SECTIONS
from tests.pages import command_helps


def test_the_helps_are_those_of_the_commands() -> None:
    """`python -m tests.pages` writes them."""
    assert command_helps.FILE.read_text() == command_helps.page()


def test_the_tables_of_a_settings_file_are_the_sections_of_the_workers() -> None:
    assert {*TABLES} == SECTIONS.keys()


def imported_by(*words: str) -> set[str]:
    """The modules that `moor` imports for this command line."""
    command = (sys.executable, "-X", "importtime", "-m", "moor", *words)
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return {
        line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")
    }


def test_the_help_imports_no_command() -> None:
    imported = imported_by("--help")
    # The modules of commands are not imported by a statement, and so are not told; what they import is.
    assert not {"moor.asking", "moor.showing", "moor.tables"} & imported
    assert "moor.options" in imported


def test_a_plain_command_imports_no_worker_and_nothing_heavy() -> None:
    for words in (("list", "--help"), ("show", "--help")):
        imported = imported_by(*words)
        rooms = {
            "nova_bridge",
            "laboratory",
            "scheduler_worker",
            "placement_worker",
            "cell_conductor",
            "compute_sim",
            "ironic_sync",
        }
        heavy = {"numpy", "sqlalchemy", "aio_pika", "yaml", "os_traits", "uvloop", "httpx"}
        assert not {each.partition(".")[0] for each in imported} & (rooms | heavy)


def test_the_help_of_a_command_is_its_own() -> None:
    assert command_of("list").help.startswith("List the instances")
