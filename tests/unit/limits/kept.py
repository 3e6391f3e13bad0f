"""For each limit beyond which something is cut or forgotten: how many of so many are kept, as a reader sees it."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx

from bus.codec import CODEC
from bus.messages.build import DeleteInstance
from bus.messages.cloud import ConductorAlive, WorkerAlive
from bus.unreadable import Unreadable
from engine.flavors import ConfigDriveParts, InstanceId, with_names
from engine.inventories import ConsumerId, Holder
from engine.picture.members import GroupMembers
from engine.picture.picture import Picture
from ironic_sync.core.node import Node, NodeData, node_of
from kit.login import RestAnswer
from moor.dashboard.access import SessionStore
from moor.dashboard.actions import DashboardJob, JobList
from moor.showing import shortened
from nova_bridge.envelope import RefusedError, no_valid_host
from placement_worker.api.values import Caller
from scheduler_worker.cells import CellRegistry, WorkerRegistry
from scheduler_worker.core.instances.resizes import with_order
from tests.narrowing import must_be, present
from tests.unit.scheduler.lone_scheduler import NOON, an_ask
from tests.unit.scheduler.test_moves_at_api_level import a_row, an_order

Case = Callable[[int], int]
HOUR = timedelta(hours=1)


def conductors(many: int) -> int:
    cells = CellRegistry(Picture(), HOUR, lambda: NOON)
    for number in range(many):
        cells.hear(ConductorAlive(cell="c1", conductor=f"conductor-{number}"))
    return len(cells.conductors_of("c1"))


def workers(many: int) -> int:
    known = WorkerRegistry(HOUR, lambda: NOON)
    for number in range(many):
        beat = WorkerAlive(
            cell="c1", worker=f"w-{number}", role="compute", release="1", started_at=NOON, told_at=NOON
        )
        known.hear(beat, "")
    return len(known.everyone())


def sessions(*users: str) -> Callable[[int], int]:
    def kept(many: int) -> int:
        store = SessionStore()
        for number in range(many):
            user = users[0] if users else f"user-{number}"
            store.begin(Caller(user=user, project=""))
        return len(store)

    return kept


def forms(many: int) -> int:
    store = SessionStore()
    session = present(store.find(store.begin(Caller(user="ann", project=""))))
    for number in range(many):
        session.note_form(f"{number}")
    return len(session.sent_forms)


def jobs_of_a_dashboard(many: int) -> int:
    async def begun() -> int:
        jobs = JobList()
        for number in range(many):
            job = DashboardJob(f"{number}", "", "", "", "", "", NOON, ended_at=NOON)
            jobs.begin(job, ended)
        return sum(jobs.find(f"{number}") is not None for number in range(many))

    return asyncio.run(begun())


async def ended() -> None: ...


def members_that_left(many: int) -> int:
    members = GroupMembers()
    members.leave([Holder(consumer=ConsumerId(UUID(int=each)), attempt=1) for each in range(many)])
    return len(members.left())


def orders(many: int) -> int:
    row = a_row()
    for _ in range(many):
        row = with_order(row, an_order())
    return len(row.changes)


def unread(line: bytes) -> Unreadable:
    return must_be(Unreadable, CODEC.decode(line))


def node(**fields: Any) -> Node:
    """As a daemon keeps what Ironic tells of it."""
    return node_of(NodeData(**{**dict.fromkeys(NodeData.__struct_fields__), "uuid": UUID(int=1), **fields}))


KEPT: Mapping[str, Case] = {
    "bus/unreadable.py VALUE_SHOWN_MAX": lambda n: len(
        unread(b'{"message":{"type":"%b"}}' % (b"x" * n)).kind
    ),
    "bus/workers/handlers.py BY_LENGTH_MAX": lambda n: len(
        an_ask(DeleteInstance(instance=InstanceId(UUID(int=1)), for_user="x" * (n - 4))).by
    ),
    "engine/flavors.py HOST_NAME_MAX": lambda n: len(
        str(with_names(ConfigDriveParts(), InstanceId(UUID(int=1)), "x" * n).meta_data["hostname"])
    ),
    "engine/picture/members.py LEFT_MAX": members_that_left,
    "ironic_sync/core/node.py LONG_TEXT_MAX": lambda n: len(node(last_error="x" * n).last_error or ""),
    "ironic_sync/core/node.py PROPERTIES_MAX": lambda n: len(
        node(properties={f"p-{each}": 1 for each in range(n)}).properties
    ),
    "kit/login.py MESSAGE_MAX": lambda n: len(RestAnswer(500, b"x" * n, httpx.Headers()).message),
    "moor/dashboard/access.py FORMS_MAX": forms,
    "moor/dashboard/access.py SESSIONS_MAX": sessions(),
    "moor/dashboard/access.py SESSIONS_PER_USER_MAX": sessions("ann"),
    "moor/dashboard/actions.py JOBS_MAX": jobs_of_a_dashboard,
    "moor/showing.py LINES_MAX": lambda n: len([each for each in shortened(["x"] * n) if each == "x"]),
    "nova_bridge/envelope.py FIELD_MAX": lambda n: len(RefusedError("x" * n, 1, "").field),
    "nova_bridge/envelope.py OSLO_REPLIES_REASON_MAX": lambda n: len(
        str(no_valid_host("x" * n).kwargs["reason"])
    ),
    "nova_bridge/envelope.py REASON_MAX": lambda n: len(RefusedError("", 1, "x" * n).reason),
    "scheduler_worker/cells.py CONDUCTORS_MAX": conductors,
    "scheduler_worker/cells.py WORKERS_MAX": workers,
    "scheduler_worker/core/instances/resizes.py CHANGES_MAX": orders,
}
