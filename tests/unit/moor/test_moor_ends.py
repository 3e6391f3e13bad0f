"""Ctrl-C while the command is still being imported, and output to a full disk."""

import subprocess
import sys
from pathlib import Path

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
