"""Random worlds around the decisions about instances that move together. Placement here grants what a member of an affinity
group may have, and notes whether the instances are ever on two hosts; hosts fail, messages are late and doubled.
"""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import Move, MoveKind
from bus.messages.cell import (
    AttemptMessage,
    DestroyInstance,
    EndMoveInCell,
    InstanceDestroyed,
    InstanceSpawned,
    InstanceStopped,
    MoveInCell,
    ReceiveInstance,
    RemoveFromCell,
    SpawnFailed,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from bus.messages.moves import is_to_wait_again
from bus.messages.placement import ReleaseClaim, SwapClaim, single_swaps
from cell_conductor.core.decide import Due, Input, decide
from cell_conductor.core.moving_together import answers_of_all, others_of
from cell_conductor.core.swapping import SwapAnswered
from cell_conductor.core.transition import state_of
from engine.flavors import InstanceId, RequestId
from engine.inventories import ConsumerId, GroupId, ProviderId, ServerGroup, Share
from engine.refusals import AlreadyClaimed, Claimed, ClaimVerdict, DoesNotFit
from tests.unit.conductor.test_conductor import NOON, RULES, choice, drawing, host, place

if TYPE_CHECKING:
    from cell_conductor.core.instance import Instance

GROUP = ServerGroup(id=GroupId(UUID(int=900)), policy="affinity")
IDS = tuple(InstanceId(ConsumerId(UUID(int=number))) for number in (1, 2, 3))
STEPS_MAX = 4000


class TogetherWorld:
    """Three members of an affinity group on host h1, which are ordered to move together to h2 or h3."""

    def __init__(self, seed: int, kind: MoveKind) -> None:
        self.chance = random.Random(f"{seed} {kind}")
        self.now = NOON
        self.rows: dict[InstanceId, Instance] = {}
        # Where each instance's claim is, and by which attempt.
        self.held: dict[InstanceId, tuple[int, ProviderId]] = {}
        self.draw = drawing()
        self.late: list[Message | SwapClaim] = []
        self.deleted: set[InstanceId] = set()
        self.split: list[object] = []
        # What each host fails to take, until it is mended.
        self.bad = self.chance.choice((0.0, 0.3, 0.7))
        for id_ in IDS:
            self.hear(structs.replace(place(), instance=id_, group=GROUP))
            self.held[id_] = (1, host("h1"))
            self.hear(InstanceSpawned(cell="c1", instance=id_, attempt=1, host=host("h1")))
        self.late.clear()
        self.move = Move(
            request_id=RequestId(UUID(int=500)),
            number=50,
            kind=kind,
            source="h1",
            ends_by=NOON + timedelta(seconds=self.chance.choice((20, 2000))),
            together=IDS,
            waits_until=NOON + timedelta(days=1),
        )
        choices = (choice("h2"), choice("h3"))
        self.late += [MoveInCell(cell="c1", instance=id_, move=self.move, choices=choices) for id_ in IDS]
        if self.chance.random() < 0.3:
            asked = structs.replace(self.move, asked="abort")
            one = self.chance.choice(IDS)
            self.late.append(EndMoveInCell(cell="c1", instance=one, move=asked, sequence=60))
        if self.chance.random() < 0.3:
            gone = self.chance.choice(IDS)
            self.deleted.add(gone)
            request = self.rows[gone].request_id
            self.late.append(
                RemoveFromCell(cell="c1", instance=gone, request_id=request, sequence=70, issued_at=NOON)
            )

    def hear(self, *inputs: Input) -> None:
        rows = {id_: row for each in inputs if (row := self.rows.get(id_ := each.instance)) is not None}
        rows |= {id_: self.rows[id_] for id_ in others_of(rows.values()) if id_ in self.rows}
        decision = decide(rows, inputs, self.now, RULES, draw=self.draw)
        self.rows |= {row.id: row for row in decision.rows}
        self.late += [each.message for each in decision.said]
        self.late += [each for each in decision.swaps if isinstance(each, SwapClaim)]

    def step(self) -> None:
        if self.late and self.chance.random() < 0.8:
            each = self.late.pop(self.chance.randrange(len(self.late)))
            if self.chance.random() < 0.1:
                self.late.append(each)
            self.deliver(each)
            return
        due = [row for row in self.rows.values() if row.due_at is not None]
        if due and (not self.late or self.chance.random() < 0.3):
            self.now = max(self.now, min(row.due_at for row in due if row.due_at is not None))
        self.hear(*[Due(row.id) for row in due if row.due_at is not None and row.due_at <= self.now])

    def deliver(self, each: Message | SwapClaim) -> None:
        match each:
            case SwapClaim():
                verdict = None if self.chance.random() < 0.1 else self.placement(each)
                self.hear(*answers_of_all(SwapAnswered(each.consumer, each, verdict)))
            case MoveInCell() | EndMoveInCell() | RemoveFromCell() | InstanceSpawned() | SpawnFailed():
                self.hear(each)
            case InstanceStopped() | InstanceDestroyed():
                self.hear(each)
            case SpawnInstance() | ReceiveInstance():
                fails = self.chance.random() < self.bad
                at = _at(each)
                self.late.append(SpawnFailed(**at, reason="full") if fails else InstanceSpawned(**at))
            case StopInstance():
                at = _at(each)
                self.late.append(InstanceStopped(**at, number=each.number))
            case StartInstance():
                at = _at(each)
                self.late.append(InstanceSpawned(**at, number=each.number))
            case DestroyInstance():
                at = _at(each)
                self.late.append(InstanceDestroyed(**at))
            case ReleaseClaim() if not each.leaves_group and each.consumer in self.held:
                if each.attempt >= self.held[InstanceId(each.consumer)][0]:
                    del self.held[InstanceId(each.consumer)]
            case _:
                pass

    def placement(self, order: SwapClaim) -> ClaimVerdict:
        swaps = single_swaps(order)
        for each in swaps:
            attempt, where = self.held.get(InstanceId(each.consumer), (0, host("h1")))
            if attempt == each.attempt:
                return AlreadyClaimed(attempt=attempt, share=Share(host=where, amounts=each.share.amounts))
            if attempt != each.held_attempt or (each.returns is None and self.chance.random() < 0.1):
                return DoesNotFit(shortfalls=())
        for each in swaps:
            self.held[InstanceId(each.consumer)] = (each.attempt, each.share.host)
        # One that is deleted has left the group.
        there = {self.held[id_][1] for id_ in IDS if id_ in self.held and id_ not in self.deleted}
        if len(there) > 1:
            self.split.append((order, dict(self.held)))
        return Claimed()

    def run(self, is_over: Callable[[], bool]) -> None:
        for _ in range(STEPS_MAX):
            if is_over():
                return
            self.step()
        raise AssertionError({str(id_)[-2:]: (row.state, row.moving) for id_, row in self.rows.items()})


def _at(order: AttemptMessage) -> dict[str, Any]:
    return {"cell": "c1", "instance": order.instance, "attempt": order.attempt, "host": order.host}


@pytest.mark.parametrize("kind", ["migrate", "evacuate"])
@pytest.mark.parametrize("seed", range(60))
def test_instances_that_move_together_are_on_one_host_after_each_commit_and_all_moves_end(
    seed: int, kind: MoveKind
) -> None:
    world = TogetherWorld(seed, kind)

    def is_over() -> bool:
        return not world.late and all(
            row.state == "deleted" or (row.moving is None and row.move is not None)
            for row in world.rows.values()
        )

    world.run(is_over)

    assert world.split == []
    living = [row for row in world.rows.values() if row.state != "deleted"]
    assert len({row.host.name for row in living if row.host is not None}) <= 1
    # One may be aborted when its time is up, and the others fail because of it.
    outcomes = {row.move.outcome for row in living if row.move is not None}
    assert outcomes <= {"confirmed"} or outcomes <= {"aborted", "failed"}
    if outcomes == {"failed"}:
        # Each is judged by its own report, but they wait again together, or not at all.
        told = [state_of(row, "c1", row.sequence) for row in living]
        assert len({is_to_wait_again(each, NOON) for each in told}) == 1, told
    for row in living:
        assert row.state == "active"
        assert world.held[row.id][1] == (row.host and row.host.share.host)
