"""A client that moves instances, and ends the moves: as planned, at once, too early, twice."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

from msgspec import structs

from bus.message import Message
from bus.messages.build import (
    IN_PLACE,
    BuildRejected,
    DeleteInstance,
    FlavorChange,
    InstancesFound,
    InstanceState,
    MoveEnd,
)
from bus.messages.moves import AskHistory, AskMoves, EndMove, HistoryFound, MoveInstance, MovesFound, MoveWait
from engine.flavors import Flavor, InstanceId, RequestId, instance_id_of
from tests.simulation.findings import Findings
from tests.simulation.loop import until_s
from tests.simulation.plan import GOLD, PROJECT, EndOfMove, Evacuation, PlannedMove, Switch

# How often and how long a client looks whether an instance is as it waits for.
LOOK_S, MOVE_UNTIL_S, END_UNTIL_S = 0.5, 39.0, 44.0
EVACUATED_AGAIN_S = 1.0
DEADLINE_S = 12

Ask = Callable[[Message], Awaitable[Message]]


class Movers:
    def __init__(self, heard: Mapping[InstanceId, InstanceState], findings: Findings) -> None:
        self._heard = heard
        self._findings = findings
        # Instances that were deleted while they moved.
        self.deleted: set[InstanceId] = set()

    async def move(self, ask: Ask, planned: PlannedMove) -> None:
        """Move the instance once it is active. One that does not become active is not moved."""
        await until_s(planned.at_s)
        instance = instance_id_of(RequestId(planned.request), planned.index)
        if not await self._is_soon(instance, lambda told: told.state == "active", MOVE_UNTIL_S):
            return
        order = order_of(planned, self._heard[instance])
        self._findings.log("client", "moves {}: {}", instance, planned.kind)
        if not await self._is_taken(ask, order):
            return
        async with asyncio.TaskGroup() as tasks:
            if planned.is_repeated:
                tasks.create_task(self._is_taken(ask, order))
            for end in planned.ends:
                tasks.create_task(self._end(ask, order, end))
            if planned.unshelved_after_s is not None:
                tasks.create_task(self._unshelve(ask, order, planned.unshelved_after_s, planned))
            if planned.offloaded_after_s is not None:
                tasks.create_task(self._offload(ask, order, planned.offloaded_after_s))
        await self._look(ask, order)

    async def switch(self, ask: Ask, planned: Switch) -> None:
        """Send the order, and its copies, in whatever state the instance is: what makes no sense then is refused."""
        instance = instance_id_of(RequestId(planned.request), planned.index)
        order = MoveInstance(
            request_id=RequestId(planned.id),
            instance=instance,
            kind=planned.kind,
            change=FlavorChange(root_gb=2) if planned.kind == "resize" else None,
            project=PROJECT,
            deadline_s=DEADLINE_S,
            confirm_s=planned.confirm_s,
            with_group=planned.kind == "migrate",
        )
        for at_s in (planned.at_s, *planned.repeated_at_s):
            await until_s(at_s)
            self._findings.log("client", "orders {} to {}", instance, planned.kind)
            await self._is_taken(ask, order)

    async def evacuate(self, ask: Ask, planned: Evacuation) -> None:
        """Evacuate what is on the host, again and again: orders are refused until the host counts as down."""
        await until_s(planned.at_s)
        loop = asyncio.get_running_loop()
        while loop.time() < planned.until_s:
            there = [told for told in list(self._heard.values()) if _is_on(told, planned.host)]
            for told in there:
                order = MoveInstance(
                    request_id=RequestId(UUID(int=planned.id.int ^ told.id.int)),
                    instance=told.id,
                    kind="evacuate",
                    hosts=(planned.to,) if planned.to else (),
                    project=PROJECT,
                    deadline_s=DEADLINE_S,
                    with_group=True,
                    wait=MoveWait(for_s=planned.wait_s),
                )
                if await self._is_taken(ask, order):
                    self._findings.log("client", "evacuates {} from {}", told.id, planned.host)
            await asyncio.sleep(EVACUATED_AGAIN_S)

    async def _end(self, ask: Ask, order: MoveInstance, end: EndOfMove) -> None:
        if end.when_arrived and not await self._is_soon(
            order.instance, lambda told: told.state == "moved", END_UNTIL_S
        ):
            return
        await asyncio.sleep(end.after_s)
        self._findings.log("client", "{} the move of {}", f"{end.how}s", order.instance)
        if end.how == "delete":
            self.deleted.add(order.instance)
            await ask(DeleteInstance(instance=order.instance))
            return
        how: MoveEnd = end.how
        said = EndMove(request_id=order.request_id, instance=order.instance, how=how, project=PROJECT)
        await self._is_taken(ask, said)

    async def _unshelve(self, ask: Ask, order: MoveInstance, after_s: float, planned: PlannedMove) -> None:
        if not await self._is_soon(
            order.instance, lambda told: told.state in ("shelved", "offloaded"), MOVE_UNTIL_S
        ):
            return
        await asyncio.sleep(after_s)
        request = RequestId(UUID(int=order.request_id.int ^ 1))
        back = structs.replace(
            order,
            request_id=request,
            kind="unshelve",
            deadline_s=planned.unshelve_deadline_s,
            hosts=(planned.to,) if planned.to else (),
            wait=_wait_of(planned),
        )
        if await self._is_taken(ask, back):
            for end in planned.unshelve_ends:
                await self._end(ask, back, end)

    async def _offload(self, ask: Ask, order: MoveInstance, after_s: float) -> None:
        if not await self._is_soon(order.instance, lambda told: told.state == "shelved", MOVE_UNTIL_S):
            return
        await asyncio.sleep(after_s)
        request = RequestId(UUID(int=order.request_id.int ^ 2))
        await self._is_taken(ask, structs.replace(order, request_id=request, kind="offload"))

    async def _look(self, ask: Ask, order: MoveInstance) -> None:
        """Check that the move is in the history of its instance, and that the question for all moves is answered."""
        history = await ask(AskHistory(instance=order.instance, project=PROJECT))
        found = await ask(AskMoves(ended=True))
        changes = history.changes if isinstance(history, HistoryFound) else ()
        if order.request_id not in {each.request_id for each in changes} or not isinstance(found, MovesFound):
            self._findings.breaks("a question gets its answer", f"{order!r} is not in {history!r}")

    async def _is_taken(self, ask: Ask, order: MoveInstance | EndMove) -> bool:
        answer = await ask(order)
        if not isinstance(answer, InstancesFound | BuildRejected):
            self._findings.breaks("a question gets its answer", f"{order!r} is answered by {answer!r}")
        if isinstance(answer, BuildRejected):
            self._findings.log("client", "was refused: {}", answer.reason)
            if not answer.reason:
                self._findings.breaks("every no has its reasons", f"{order!r} is refused without one")
        return isinstance(answer, InstancesFound)

    async def _is_soon(
        self, instance: InstanceId, is_so: Callable[[InstanceState], bool], end_s: float
    ) -> bool:
        loop = asyncio.get_running_loop()
        while (told := self._heard.get(instance)) is None or not is_so(told):
            if loop.time() > end_s:
                return False
            await asyncio.sleep(LOOK_S)
        return True


def order_of(planned: PlannedMove, told: InstanceState) -> MoveInstance:
    is_in_place = planned.kind in IN_PLACE
    specs = {f"trait:{GOLD}": "required"} if planned.needs_gold else {}
    flavor = Flavor(
        name="other", vcpus=planned.vcpus, ram_mb=planned.ram_mb, root_gb=planned.root_gb, extra_specs=specs
    )
    return MoveInstance(
        request_id=RequestId(planned.id),
        instance=told.id,
        kind=planned.kind,
        flavor=flavor if planned.kind == "resize" else None,
        hosts=(told.host,) if planned.stays else (planned.to,) if planned.to and not is_in_place else (),
        project=PROJECT,
        deadline_s=planned.deadline_s,
        confirm_s=planned.confirm_s,
        with_group=planned.kind in ("migrate", "live-migrate", "evacuate"),
        wait=None if is_in_place else _wait_of(planned),
    )


def _wait_of(planned: PlannedMove) -> MoveWait | None:
    return MoveWait(for_s=planned.wait_s, priority=planned.priority) if planned.wait_s else None


def _is_on(told: InstanceState, host: str) -> bool:
    return told.host == host and told.state in ("active", "stopped", "shelved", "error")
