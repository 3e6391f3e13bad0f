"""The steps of a client and their results, printed as a table and counted.

It imports only the standard library, because the clients' own environments run it too.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

NAME_WIDTH = 64


class Steps:
    """After a failed step the others still run: where one client fails, another may succeed."""

    def __init__(self, title: str) -> None:
        self._done = 0
        self._failed: list[str] = []
        print(f"\n{title}", flush=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self._done += 1
        began = time.perf_counter()
        wrong = ""
        try:
            yield
        except Exception as problem:  # noqa: BLE001 - whatever a client raises is what is to be told here
            wrong = f"{type(problem).__name__}: {problem}"
            self._failed.append(name)
        took_s = time.perf_counter() - began
        print(
            f"  {name:<{NAME_WIDTH}} {took_s:6.2f} s  {'FAILED' if wrong else 'as it should be'}", flush=True
        )
        for line in wrong.splitlines():
            print(f"      {line}", flush=True)

    @property
    def are_well(self) -> bool:
        """Print the number of steps; true if all went well."""
        print(f"  {self._done} steps, {len(self._failed)} failed", flush=True)
        return bool(self._done) and not self._failed


def expect(seen: object, wanted: object) -> None:
    """Unlike a bare assertion, the error shows both values."""
    if seen != wanted:
        raise AssertionError(f"saw    {seen!r}\nwanted {wanted!r}")


def expect_within(seen: str, wanted: str) -> None:
    if wanted not in seen:
        raise AssertionError(f"saw    {seen!r}\nwanted {wanted!r} in it")
