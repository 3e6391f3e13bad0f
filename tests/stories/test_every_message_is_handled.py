"""Each message that the routes lead to a queue of a worker has a handler there: a message without one becomes a dead letter."""

from pathlib import Path
from typing import Any

import pytest

from bus.memory import MemoryBroker
from bus.message import type_of
from bus.messages import ALL
from bus.queues import QueueKind
from bus.topology import QUEUES
from bus.workers.consuming import Subscription
from bus.workers.worker import Worker
from moor.clouds.cloud import BareMetalPlan, CloudPlan, cells_of_groups, cloud

CELL = "c1"


async def test_each_message_for_a_queue_has_a_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: dict[str, set[str]] = {}
    made = Worker.__init__

    def noted(self: Worker[Any], station: Any, there: Subscription[Any]) -> None:
        handled.setdefault(there.queue, set()).update(map(type_of, there.handlers))
        made(self, station, there)

    monkeypatch.setattr(Worker, "__init__", noted)
    plan = CloudPlan(cells={CELL: 1}, metal=BareMetalPlan(nodes=1, cells=cells_of_groups((CELL,))))
    async with cloud(plan, MemoryBroker().as_user(), f"sqlite+aiosqlite:///{tmp_path / 'moor.db'}"):
        pass

    for queue in QUEUES:
        if queue.kind in (QueueKind.WORK, QueueKind.QUESTIONS):
            wanted = {type_of(each) for each in ALL if each.ROUTE.to == queue.name}
            there = handled.get(queue.name.format(cell=CELL), set())
            assert wanted, queue.name
            assert wanted == wanted & there, f"{queue.name}: {sorted(wanted - there)}"
