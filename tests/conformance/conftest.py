"""The real openstack-placement, for the tests that compare ours with it."""

from collections.abc import Iterator

import pytest

from tests.conformance.upstream import Upstream


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream() as process:
        yield process
