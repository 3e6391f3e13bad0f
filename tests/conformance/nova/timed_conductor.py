"""nova-conductor, which also writes how long each `select_destinations` took: `python -m tests.conformance.nova.timed_conductor FILE ...`.

The Python of Nova's environment runs it; the other arguments are those of nova-conductor. A line of the file is the time of the
call, the seconds until its answer, and the number of instances, or the name of the error.
"""

# isort: off
from nova.cmd import conductor  # Nova patches the standard library before anything else is imported
# isort: on

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nova.scheduler import rpcapi


def timed(select: Callable[..., Any], file: Path) -> Callable[..., Any]:
    def select_destinations(*arguments: Any, **named: Any) -> Any:
        began_s = time.time()
        ended = type(None).__name__
        try:
            answer = select(*arguments, **named)
            ended = str(len(answer))
        except Exception as problem:
            ended = type(problem).__name__
            raise
        else:
            return answer
        finally:
            with file.open("a") as written:
                written.write(f"{began_s:.6f} {time.time() - began_s:.6f} {ended}\n")

    return select_destinations


def main() -> None:
    rpcapi.SchedulerAPI.select_destinations = timed(
        rpcapi.SchedulerAPI.select_destinations, Path(sys.argv.pop(1))
    )
    sys.argv[0] = "nova-conductor"
    conductor.main()


if __name__ == "__main__":
    main()
