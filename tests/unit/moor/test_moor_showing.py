"""Texts that others have chosen are printed as they are: brackets are no colours, and addresses no emojis."""

from collections.abc import Callable
from functools import partial
from uuid import UUID

import pytest

from bus.messages.build import AttemptFailed, InstanceDetails, InstanceState, Move, Size
from bus.messages.moves import Change
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostSetting, HostState
from engine.inventories import ProviderId, ProviderState
from engine.refusals import NoValidHost
from moor.bare_metal.nodes import NODES, NodeShown, Offered
from moor.client.hosts import Stayed
from moor.instances.hosts_command import STAYED
from moor.instances.move_commands import HISTORY, MOVES
from moor.options import out
from moor.placement.providers_command import PROVIDERS
from moor.showing import (
    HOSTS,
    INSTANCES,
    print_host,
    print_instance,
    print_no_valid_host,
    size_in_words,
    wide,
)
from moor.tables import Columns, print_table
from tests.unit.conductor.cell import NOON

STRANGE = "[/b] [red]fe80:1234:1"
ID = UUID(int=1)


def printed(show: Callable[[], None]) -> str:
    width, out.width = out.width, 1000
    try:
        with out.capture() as captured:
            show()
    finally:
        out.width = width
    return captured.get()


MOVE = Move(
    request_id=RequestId(ID),
    number=1,
    kind="migrate",
    source=STRANGE,
    destination=STRANGE,
    ends_by=NOON,
    outcome="failed",
    failure=STRANGE,
)
INSTANCE = InstanceState(
    id=InstanceId(ID),
    request_id=RequestId(ID),
    sequence=1,
    state="active",
    host=STRANGE,
    name=STRANGE,
    reason=STRANGE,
    failures=(AttemptFailed(attempt=1, host=STRANGE, reason=STRANGE),),
    move=MOVE,
)
HOST = HostState(
    id=ProviderId(ID),
    name=STRANGE,
    cell="c1",
    up=True,
    availability_zone=STRANGE,
    setting=HostSetting(reason=STRANGE, by=STRANGE),
)
DETAILS = InstanceDetails(
    id=INSTANCE.id,
    size=Size(flavor=STRANGE, amounts={"CUSTOM_FPGA": 1, "DISK_GB": 2, "VCPU": 4}),
    accepted_at=NOON,
)
CHANGE = Change(
    instance=InstanceId(ID),
    number=1,
    what="migrate",
    cell="c1",
    asked_at=NOON,
    by=STRANGE,
    source=STRANGE,
    destination=STRANGE,
    outcome="failed",
    failure=STRANGE,
    size=DETAILS.size,
)
PROVIDER = ProviderState(
    internal=1, id=ProviderId(ID), parent=ProviderId(ID), root=ProviderId(ID), name=STRANGE
)
NODE = NodeShown(
    id=ID,
    name=STRANGE,
    cell="c1",
    daemon=STRANGE,
    epoch=1,
    ironic=None,
    offered=Offered(reasons=(STRANGE,)),
    deploy=None,
)


@pytest.mark.parametrize(
    ("columns", "item", "times"),
    [
        (INSTANCES, INSTANCE, 3),
        (HOSTS, HOST, 3),
        (wide({INSTANCE.id: DETAILS}), INSTANCE, 4),
        (HISTORY, CHANGE, 5),
        (MOVES, CHANGE, 3),
        (STAYED, Stayed(InstanceId(ID), STRANGE, STRANGE), 2),
        (PROVIDERS, PROVIDER, 1),
        (NODES, NODE, 3),
    ],
)
def test_a_table_has_the_texts_of_others_as_they_are(
    columns: Columns[object], item: object, times: int
) -> None:
    assert printed(partial(print_table, (item,), columns)).count(STRANGE) == times


@pytest.mark.parametrize(
    ("show", "times"),
    [
        (partial(print_instance, INSTANCE), 8),
        (partial(print_instance, INSTANCE, "", DETAILS), 9),
        (partial(print_host, HOST), 4),
        (partial(print_no_valid_host, STRANGE, NoValidHost(hosts=1, steps=())), 1),
    ],
)
def test_one_thing_is_shown_with_the_texts_of_others_as_they_are(
    show: Callable[[], None], times: int
) -> None:
    assert printed(show).count(STRANGE) == times


def test_a_size_begins_with_what_each_instance_has() -> None:
    assert DETAILS.size is not None

    assert size_in_words(DETAILS.size) == f"{STRANGE}: 4 VCPU, 2 DISK_GB, 1 CUSTOM_FPGA"


def test_an_instance_of_a_scheduler_that_tells_no_details_is_shown_without_them() -> None:
    older = printed(partial(print_table, (INSTANCE,), wide({})))

    assert "size" not in older
    assert str(ID) in older
