"""`moor --help` knows the commands' helps without importing the commands; and a plain command imports no worker."""

import subprocess
import sys

from tools.pages import command_helps


def test_the_helps_are_those_of_the_commands() -> None:
    """`python -m tools.pages` writes them."""
    assert command_helps.FILE.read_text() == command_helps.page()


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
