"""What holds for every test: properties are searched alike each time, and never fail for being slow; and who may run beside
whom, where several run at once.
"""

import pytest
from hypothesis import settings

settings.register_profile("moorage", derandomize=True, deadline=None)
settings.load_profile("moorage")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that need the real broker come one after another, since some of them stop it; of the others, those of one file,
    since some share what is dear to make.
    """
    for item in items:
        alone = item.get_closest_marker("rabbitmq")
        item.add_marker(pytest.mark.xdist_group("rabbitmq" if alone else item.nodeid.partition("::")[0]))
