"""Starts the `moor` command. Ctrl-C ends it without a traceback, also while its modules are still imported."""

import sys
from importlib import import_module
from signal import SIGINT


def main() -> None:
    try:
        import_module("moor.commands").main()
    except KeyboardInterrupt:
        sys.exit(128 + SIGINT)


if __name__ == "__main__":
    main()
