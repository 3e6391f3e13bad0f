"""The processes that run seeds, for all tests: each needs seconds to start."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.simulation.many_seeds import pool_with_fixed_hashes


@pytest.fixture(scope="session")
def pool() -> Iterator[ProcessPoolExecutor]:
    with pool_with_fixed_hashes() as pool:
        yield pool
