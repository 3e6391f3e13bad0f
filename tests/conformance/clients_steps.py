"""The steps of a client and their results, printed as a table and counted.

It imports only the standard library, because the clients' own environments run it too.
"""

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

NAME_WIDTH = 64


class Step(NamedTuple):
    """What is done, and what is to be seen then; None if the client only has to succeed."""

    name: str
    seen: Callable[[], object]
    wanted: object = None


def are_well(title: str, steps: Iterable[Step]) -> bool:
    """After a failed step the others still run: where one client fails, another may succeed."""
    print(f"\n{title}", flush=True)
    done = failed = 0
    for step in steps:
        began, wrong = time.perf_counter(), ""
        try:
            seen = step.seen()
            if step.wanted is not None and seen != step.wanted:
                wrong = f"saw    {seen!r}\nwanted {step.wanted!r}"
        except Exception as problem:  # noqa: BLE001 - whatever a client raises is what is to be told here
            wrong = f"{type(problem).__name__}: {problem}"
        done, failed = done + 1, failed + bool(wrong)
        took_s = time.perf_counter() - began
        told = "FAILED" if wrong else "as it should be"
        print(f"  {step.name:<{NAME_WIDTH}} {took_s:6.2f} s  {told}", flush=True)
        for line in wrong.splitlines():
            print(f"      {line}", flush=True)
    print(f"  {done} steps, {failed} failed", flush=True)
    return bool(done) and not failed
