"""The libvirtds of tests: each file has its own."""

from collections.abc import Iterator

import pytest

from tests.servers.libvirtd import PrivateLibvirtd


@pytest.fixture(scope="module")
def libvirtd() -> Iterator[PrivateLibvirtd]:
    with PrivateLibvirtd() as server:
        yield server


@pytest.fixture(scope="module")
def libvirtds() -> Iterator[tuple[PrivateLibvirtd, PrivateLibvirtd]]:
    with PrivateLibvirtd() as first, PrivateLibvirtd() as second:
        yield first, second
