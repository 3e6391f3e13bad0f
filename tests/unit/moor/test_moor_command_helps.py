"""`moor --help` knows the commands' helps without importing the commands; and a plain command imports no worker."""

import subprocess
import sys

from moor.commands import command_of, every
from moor.flags import first_paragraph


def test_the_list_of_commands_says_of_each_what_its_own_help_says_first() -> None:
    told = {name: text for name, (*_, text) in every().items()}
    assert told == {name: first_paragraph(command_of(name).help or "") for name in told}


def imported_by(*words: str) -> set[str]:
    """The modules that `moor` imports for this command line."""
    command = (sys.executable, "-X", "importtime", "-m", "moor", *words)
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return {
        line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")
    }


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
        # Commands of other packages are looked for only where the command is none of these.
        assert "importlib.metadata" not in imported
