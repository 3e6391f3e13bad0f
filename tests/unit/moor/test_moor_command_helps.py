"""`moor --help` knows the commands' helps without importing the commands, and a plain command imports no worker; Ctrl-C while it is being
imported; and output to a full disk.
"""

import subprocess
import sys
from pathlib import Path

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


INTERRUPTED_IMPORT = """
import sys
from moor.__main__ import main

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "moor.commands":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
main()
"""


def test_ctrl_c_during_the_imports_shows_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (130, "", "")


def test_a_full_disk_for_the_output_is_reported_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "moor", "host", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (ran.returncode, ran.stderr) == (1, "cannot write: No space left on device\n")
