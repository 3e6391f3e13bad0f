"""Ctrl-C while the command is still being imported."""

import subprocess
import sys

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
