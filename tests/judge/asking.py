"""Hands jobs to processes that fork (forking.py): so many of each kind as there are brokers, each with its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeVar

import msgspec

from tests.judge.forking import Answer, Job
from tests.judge.places import ROOT
from tests.servers.own_broker import brokers_in, take_broker

# What pytest says is there.
LOGS = ROOT / "build" / "judge"
T = TypeVar("T")
U = TypeVar("U")


class DidNotCollectError(Exception):
    """The tests of this folder cannot be collected, so they judge nothing."""


class Judge:
    """One process, and the tests of a kind, or of some files, in it."""

    def __init__(self, paths: Sequence[str], broker: int) -> None:
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
        take_broker(environment, f"gw{broker}")
        LOGS.mkdir(parents=True, exist_ok=True)
        with (LOGS / f"{paths[0].replace('/', '-')}-{broker}.log").open("w") as log:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "tests.judge.forking", *paths),
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.tests = self._read(list[str])

    def ask(self, job: Job) -> Answer:
        assert self._process.stdin
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        self._process.stdin.flush()
        return self._read(Answer)

    def end(self) -> None:
        self._process.communicate()

    def _read(self, form: type[T]) -> T:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise DidNotCollectError(f"{self._process.args!r} ended with {self._process.wait()}")
        return msgspec.json.decode(line, type=form)


class Judges:
    """All of one kind. Each answers one question at a time."""

    def __init__(self, kind: str) -> None:
        with ThreadPoolExecutor() as pool:
            self._all = [
                *pool.map(lambda number: Judge([f"tests/{kind}"], number), range(brokers_in(os.environ)))
            ]
        self._free: SimpleQueue[Judge] = SimpleQueue()
        for each in self._all:
            self._free.put(each)

    def ask(self, job: Job) -> Answer:
        judge = self._free.get()
        try:
            return judge.ask(job)
        finally:
            self._free.put(judge)

    def ask_about(self, things: Sequence[T], by: Callable[[T], U]) -> Iterator[tuple[T, U]]:
        """What comes of each thing, in their order; `by` asks about one."""
        with ThreadPoolExecutor(len(self._all)) as pool:
            yield from zip(things, pool.map(by, things), strict=True)

    def end(self) -> None:
        for each in self._all:
            each.end()


@contextmanager
def judges(kind: str) -> Iterator[Judges]:
    found = Judges(kind)
    try:
        yield found
    finally:
        found.end()
