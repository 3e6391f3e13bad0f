"""Upstream's own suite against `moor run placement-api`: every step of every file, on both databases.

One server for each profile and database is started once, and emptied between files through its API.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Final

import pytest

from tests.conformance.running_steps import failures_of
from tests.conformance.suite_files import PROFILES, SuiteFile, suite_files
from tests.contracts.sql_stores import empty_database
from tests.placement_servers import our_server

FILES: Final = tuple(suite_files())
STEPS_MIN: Final = 1_316
OPTIONS: Final[Mapping[str, Sequence[str]]] = {
    "default": ("--policy", "legacy"),
    "secure": ("--policy", "secure"),
    "open": ("--policy", "open"),
    "cors": ("--policy", "legacy", "--cors-origin", "http://valid.example.com"),
}


@contextmanager
def a_database(kind: str) -> Iterator[str]:
    """Empty: the server creates its tables."""
    with asyncio.Runner() as runner:
        database = empty_database(kind)
        yield runner.run(database.__aenter__())
        runner.run(database.__aexit__(None, None, None))


@pytest.fixture(
    scope="module",
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ],
)
def url_of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """The address of the server of a profile, on one kind of database; it is started on first use."""
    with ExitStack() as stack:

        def started(profile: str) -> str:
            database = stack.enter_context(a_database(request.param))
            return stack.enter_context(our_server(database, auth="noauth2", options=OPTIONS[profile])).url

        yield cache(started)


def test_the_suite_is_whole() -> None:
    assert sum(file.steps for file in FILES) >= STEPS_MIN
    assert {file.profile for file in FILES} == set(PROFILES) == set(OPTIONS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_step_passes(url_of: Callable[[str], str], file: SuiteFile) -> None:
    failed = failures_of(file, url_of(file.profile))

    told = "\n".join(f"  {step}: {why[:500]}" for step, why in failed.items())
    assert not failed, f"{len(failed)} of {file.steps} steps of {file.name} failed:\n{told}"
