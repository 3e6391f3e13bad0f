"""What tests of libvirt need: each file has its libvirtds, and each test its host."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.libvirt.driven_host import Host
from tests.servers.libvirtd import PrivateLibvirtd


@pytest.fixture(scope="module")
def libvirtd() -> Iterator[PrivateLibvirtd]:
    with PrivateLibvirtd() as server:
        yield server


@pytest.fixture(scope="module")
def libvirtds() -> Iterator[tuple[PrivateLibvirtd, PrivateLibvirtd]]:
    with PrivateLibvirtd() as first, PrivateLibvirtd() as second:
        yield first, second


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with closing(Host(tmp_path)) as made:
        yield made
