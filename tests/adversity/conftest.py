"""Fixtures for tests of attacks."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """Without logs: a line for each of a hundred thousand dead letters would be most of the work."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
