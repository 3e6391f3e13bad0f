"""What holds for every test: properties are searched alike each time, and never fail for being slow; what takes longest
begins first. Where there are several brokers, each test process has one of its own.
"""

import gc
import os

import pytest
from hypothesis import settings

from tests.servers.own_broker import brokers_in, take_broker

settings.register_profile("moorage", derandomize=True, deadline=None)
settings.load_profile("moorage")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Simulations compute for minutes beside tests that mostly wait."""
    items.sort(key=lambda item: "simulation" not in item.path.parts)


def pytest_collection_finish() -> None:
    """All that was imported and collected stays: the garbage collector need not walk it again. Nor need it look for
    cycles every 700 objects. Both together were a seventh of the tests' CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 100)


def pytest_xdist_auto_num_workers() -> int:
    """What `--numprocesses auto` means here."""
    return brokers_in(os.environ)


if process := os.environ.get("PYTEST_XDIST_WORKER"):
    take_broker(os.environ, process)
