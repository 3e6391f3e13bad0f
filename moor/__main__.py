"""Starts the `moor` command. Ctrl-C ends it without a traceback, also while its modules are still imported. If the disk
to which it writes its output is full, it ends with one line that says so.
"""

import os
import sys
from errno import ENOSPC
from importlib import import_module
from signal import SIGINT


def main() -> None:
    try:
        import_module("moor.commands").main()
    except KeyboardInterrupt:
        sys.exit(128 + SIGINT)
    except OSError as failed:
        if failed.errno != ENOSPC:
            raise
        # Otherwise Python tries at its end once more to write what is left of the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"cannot write: {failed.strerror}")


if __name__ == "__main__":
    main()
