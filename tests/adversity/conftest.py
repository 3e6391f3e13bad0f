"""What tests of attacks share."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """No logs: of a hundred thousand dead letters, a line for each would be most of the work."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
