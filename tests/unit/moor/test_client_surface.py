"""What the public client offers: its arguments are those of the messages, and both clients have the same methods."""

import inspect
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Any
from uuid import UUID

import pytest

from bus.memory import MemoryBroker
from bus.messages.build import BuildInstance, BuildRejected
from bus.messages.hosts import HostsFound
from bus.messages.moves import MoveInstance, MoveWait
from engine.flavors import Image, JoinedGroup, Wait
from engine.hosts import HostState
from engine.inventories import AggregateId, GroupId, ProviderId
from moor.client import (
    BuildFields,
    Client,
    Flavor,
    MoveFields,
    NotSendable,
    OrderFields,
    Rejected,
    SyncClient,
)
from moor.client.requests import build_of, move_of
from tests.asking import client_of
from tools.pages.client_stub import FILE, stub

# What a program must not pay for, or have, to use the client.
NOT_NEEDED = ("click", "rich", "numpy", "sqlalchemy", "starlette", "uvicorn", "aio_pika")


def test_the_client_is_imported_without_what_it_does_not_need() -> None:
    code = f"import sys, moor.client; print([name for name in {NOT_NEEDED!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_boot_has_every_field_of_a_build_request() -> None:
    # What the first argument says, by itself or by a name.
    own = {"flavor", "flavor_names"}
    assert {*BuildFields.__annotations__} | own == set(BuildInstance.__struct_fields__)


def test_the_moves_have_every_field_of_an_order_to_move() -> None:
    # The others are arguments of the methods that have them, or the client says them of all its questions.
    own = {"instance", "kind", "flavor", "change", "confirm_s", "together", "for_member"}
    shared = {*OrderFields.__annotations__, *MoveFields.__annotations__}
    assert shared | own == set(MoveInstance.__struct_fields__)
    assert {"confirm_s", "together"} <= set(inspect.signature(Client.migrate).parameters)


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    assert FILE.read_text() == stub(), "write it again: python -m tools.pages.client_stub"
    found = methods_of(Client)
    assert len(found) > 30

    sync = methods_of(SyncClient)

    assert sync.keys() - {"run", "iterate"} == found.keys()
    for name, method in found.items():
        assert inspect.signature(sync[name]) == inspect.signature(method), name
        assert method.__doc__, f"{name} has no description"


def methods_of(kind: type[object]) -> dict[str, Callable[..., Any]]:
    return {
        name: method
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_short_forms_of_a_build_become_what_the_receiver_reads() -> None:
    one, two = UUID(int=1), UUID(int=2)
    built = build_of(
        Flavor(vcpus=1),
        "shop",
        {"group": one, "image": "debian", "wait": 60, "member_of": [one, [one, two]], "hosts": ["h1"]},
    )

    assert (built.group, built.image, built.wait) == (
        JoinedGroup(id=GroupId(one)),
        Image(source="debian"),
        Wait(for_s=60),
    )
    assert built.member_of == ((AggregateId(one),), (AggregateId(one), AggregateId(two)))
    assert (built.hosts, built.project) == (("h1",), "shop")


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"count": "two"}, "count", "two"),
        ({"count": 2**70}, "count", str(2**70)),
        ({"name": "x" * 300}, "name", "x" * 300),
        ({"name": "a\0b"}, "name", "a\\0b"),
        ({"project": "No Project"}, "project", "No Project"),
        ({"image_properties": {"a": 1}}, "image_properties[...]", "{"),
        ({"group": "web"}, "group", "web"),
        ({"name": 1j}, "message", "BuildInstance"),
        ({"hosts": [f"{number:0250}" for number in range(2000)]}, "message", "build.request"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_a_value_that_cannot_be_sent_is_named(fields: BuildFields, field: str, value: str) -> None:
    with pytest.raises(NotSendable) as wrong:
        build_of(Flavor(vcpus=1), "", fields)
    assert wrong.value.field == field
    assert wrong.value.value.startswith(value[:20])
    assert wrong.value.reason


def test_a_move_without_a_request_id_gets_one_and_one_with_an_id_keeps_it() -> None:
    instance, mine = UUID(int=1), UUID(int=7)
    first, second = (move_of(instance, "migrate", "", {}) for _ in range(2))
    assert first.request_id != second.request_id
    assert move_of(instance, "migrate", "", {"request_id": mine}).request_id == mine


def test_a_move_waits_as_it_is_told_or_not_at_all() -> None:
    for wait, sent in ((60, MoveWait(for_s=60)), (MoveWait(for_s=60, priority=2),) * 2, (None, None)):
        assert move_of(UUID(int=1), "migrate", "", {"wait": wait}).wait == sent


class HostsOfOneName:
    """A bus on which a host of this name is up in so many cells."""

    def __init__(self, cells: int) -> None:
        self._ids = range(1, cells + 1)

    async def ask(self, _question: object) -> HostsFound:
        hosts = (
            HostState(id=ProviderId(UUID(int=at)), name="h1", cell=f"c{at}", up=True) for at in self._ids
        )
        return HostsFound(hosts=tuple(hosts))


async def test_a_host_is_not_guessed_if_two_cells_have_its_name() -> None:
    moor = client_of(HostsOfOneName(2))

    with pytest.raises(Rejected, match="give one as c1/h1 or c2/h1"):
        await moor.show_host("h1")


class Refusing:
    """A bus on which each request to build is refused."""

    async def ask(self, order: BuildInstance) -> BuildRejected:
        return BuildRejected(request_id=order.request_id, field="flavor", value="", reason="no")


async def test_a_boot_that_is_sent_again_is_the_same_request() -> None:
    with pytest.raises(Rejected) as refused:
        await client_of(Refusing()).boot(Flavor(vcpus=1), request_id=UUID(int=7))

    assert refused.value.request_id == UUID(int=7)


def test_a_loop_that_is_left_leaves_nothing_behind() -> None:
    left = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            left.append("ended")

    with SyncClient(MemoryBroker().as_user()) as moor:  # type: ignore[arg-type]  # as the other client
        for _ in moor.iterate(numbers()):
            break
        assert left == ["ended"]
