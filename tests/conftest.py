"""What holds for every test: properties are searched alike each time, and never fail for being slow; what takes longest
begins first.
"""

import pytest
from hypothesis import settings

settings.register_profile("moorage", derandomize=True, deadline=None)
settings.load_profile("moorage")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Simulations compute for minutes beside tests that mostly wait."""
    items.sort(key=lambda item: "simulation" not in item.path.parts)
