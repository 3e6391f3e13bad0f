"""A program for the tests of the fork server: `python -m tests.fork_server.example ENDING`."""

import atexit
import json
import os
import signal
import sys


class _Left:
    """Part of a cycle: only the garbage collector frees it."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        sys.stderr.write("an object was left behind\n")


def main(ending: str) -> None:
    match ending:
        case "say":
            said = {
                "arguments": sys.argv[1:],
                "environment": dict(os.environ),
                "pid": os.getpid(),
                "name": __name__,
                "stdin": sys.stdin.read(),
            }
            sys.stdout.write(json.dumps(said))
            sys.stderr.write("to stderr\n")
        case "returns":
            sys.stdout.write("not flushed")
        case "exits":
            sys.stdout.write("not flushed")
            sys.exit(7)
        case "refuses":
            sys.exit("refused, for a reason")
        case "fails":
            raise ValueError("it failed")
        case "is_interrupted":
            raise KeyboardInterrupt
        case "waits":
            sys.stdout.write("waits\n")
            sys.stdout.flush()
            signal.pause()
        case _:
            _Left()
            atexit.register(sys.stderr.write, "at exit\n")
            sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
