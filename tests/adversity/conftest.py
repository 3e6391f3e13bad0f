"""Fixtures for tests of attacks."""

import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.contracts.sql_stores import migrated_database


@pytest.fixture
def quiet() -> Iterator[None]:
    """Without logs: a line for each of a hundred thousand dead letters would be most of the work."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """An empty database of placement on PostgreSQL."""
    async with migrated_database("postgresql") as url:
        yield url
