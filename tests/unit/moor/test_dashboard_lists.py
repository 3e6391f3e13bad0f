"""Lists of the dashboard: a page on which nothing was found yet does not say that there is nothing."""

from uuid import UUID

import pytest

from bus.memory import MemoryBroker
from bus.messages.build import InstancesFound
from engine.flavors import InstanceId
from moor.client import Client
from moor.dashboard.resource_pages import INSTANCE_LIST, ResourcePages


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (None, "no instances"),
        (InstanceId(UUID(int=7)), "no instances so far: the next page goes on"),
    ],
)
def test_an_empty_page_with_more_behind_it_says_so(place: InstanceId | None, said: str) -> None:
    pages = ResourcePages(Client(MemoryBroker().as_user()))

    table = pages._table(INSTANCE_LIST, InstancesFound(instances=(), next=place), is_later=False)  # noqa: SLF001

    assert table.nothing == said
