"""Starts the `moor` command. Its imports take a moment, and Ctrl-C must end it without a traceback then, too."""

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
