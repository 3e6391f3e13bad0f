"""A fault at a commit undoes the transaction, or comes after it; either way the next transaction can begin."""

import asyncio
from contextlib import suppress
from typing import Any, cast
from uuid import UUID

import pytest

from cell_conductor.core.rows import HeardHost
from cell_conductor.store_sql import ConductorStore
from engine.inventories import ProviderId
from kit.errors import Transient
from tests.simulation.faulty_database import FaultyDatabase
from tests.simulation.loop import simulated
from tests.simulation.process import SimProcess, owned_task
from tests.sqlite_memory import MemoryDatabase, Tables

HOST = HeardHost(ProviderId(UUID(int=1)), None)


class Deaf:
    def __getattr__(self, _name: str) -> Any:
        return self

    def __call__(self, *_: object, **__: object) -> None: ...


@pytest.mark.parametrize(
    ("fault", "stays"),
    [
        ("crash_before_commit", False),
        ("serialisation_failure", False),
        ("lost_before_commit", False),
        ("lost_after_commit", True),
        ("crash_after_commit", True),
    ],
)
@simulated
async def test_what_a_transaction_wrote_stays_if_the_fault_came_after_its_commit(
    fault: str,
    stays: bool,  # noqa: FBT001
) -> None:
    asyncio.get_running_loop().set_task_factory(owned_task)
    nobody = cast("Any", Deaf())
    process, tables = SimProcess("conductor-c1-1", 1, 1, nobody), Tables("cell_conductor")
    store = ConductorStore(FaultyDatabase(tables, process), "c1", clock=process.clock)

    async def write() -> None:
        with suppress(Transient):
            await store.save_heard_hosts([HOST])

    if fault.startswith("crash_"):
        process.arm_crash(fault.removeprefix("crash_"), 0.0)
    else:
        process.armed[fault] = 1
    process.start(write())
    await asyncio.sleep(2)
    kept = await ConductorStore(MemoryDatabase(tables), "c1").heard_hosts()
    assert kept == ([HOST] if stays else [])
