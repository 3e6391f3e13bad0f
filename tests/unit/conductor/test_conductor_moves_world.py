"""Random worlds around the conductor's decisions in which instances move and are rebuilt. Messages are lost, late and doubled, hosts fail and
keep silent, clients confirm, revert, abort and delete at any moment.
"""

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import InstanceMoved, InstanceState, Move, MoveEnd, MoveKind
from bus.messages.cell import (
    DeployInstance,
    EndMoveInCell,
    InstanceSpawned,
    InstanceStopped,
    MoveInCell,
    ReceiveInstance,
    RedeployInstance,
    RemoveFromCell,
    RespawnInstance,
    SpawnFailed,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from cell_conductor.core.rows import Instance
from cell_conductor.core.swapping import SwapAnswered
from engine.flavors import InstanceId, RequestId
from engine.inventories import Choice, ConsumerId, ProviderId, ResourceAmount, Share
from tests.unit.conductor.test_conductor_world import HOSTS, NODES, Attempt, World

SEEDS = range(80)
STEPS = 500
MACHINES = tuple(host for host in HOSTS if host not in NODES)
KINDS: tuple[MoveKind, ...] = ("migrate", "live-migrate", "resize", "evacuate", "shelve", "offload")
# To be reverted takes more steps than to be confirmed, and messages are lost.
ENDS: tuple[MoveEnd, ...] = ("confirm", "revert", "revert", "revert", "revert")


def share(host: ProviderId, amount: int = 1) -> Share:
    return Share(host=host, amounts=(ResourceAmount(provider=host, resource="VCPU", amount=amount),))


class MovingWorld(World):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.of_moves = random.Random(f"{seed} moves")
        # Attempts that run, and the last order to stop or to start each.
        self.running: set[tuple[ProviderId, Attempt]] = set()
        self.last: dict[tuple[ProviderId, Attempt], tuple[int, bool]] = {}
        # What each attempt was saved as since it was stopped, and the last image of each instance.
        self.images_of: dict[tuple[ProviderId, Attempt], str] = {}
        self.last_images: dict[InstanceId, str] = {}
        self.outcomes: list[tuple[str, str]] = []

    def _hosts_to_choose_from(self) -> Sequence[ProviderId]:
        return MACHINES

    # The API level

    def _rebuild(self, told: InstanceState) -> None:
        """After each word of the cell: the next move, or an end of the last one, or a delete."""
        if told.move is not None:
            self.outcomes.append((told.move.kind, told.move.outcome))
        if not self.has_faults or told.id in self.removed or self._is_before(told):
            return
        if told.state == "moved" and told.move is not None and self.of_moves.random() < 0.8:
            self._end(told, told.move, self.of_moves.choice(ENDS))
        elif told.state in ("active", "error") and told.host and self.of_rebuilds.random() < 0.2:
            self._order_rebuild(told)
        elif told.state == "active" and self.of_moves.random() < 0.95:
            self._move(told)
        elif told.state == "error" and told.host and self.of_moves.random() < 0.5:
            self._move(told, ("evacuate",))
        elif told.state == "shelved":
            self._move(told, ("unshelve", "offload", "evacuate"))
        elif told.state == "offloaded":
            self._move(told, ("unshelve",))
        if self.of_moves.random() < 0.04:
            self._remove(told)

    def _is_before(self, told: InstanceState) -> bool:
        """Did the cell say this before it received the last order? Then it does not count at API level."""
        numbers = [each.number for each in (told.rebuild, told.move) if each is not None]
        return max(numbers, default=0) < self.ordered.get(told.id, 0)

    def _move(self, told: InstanceState, kinds: Sequence[MoveKind] = KINDS) -> None:
        kind = self.of_moves.choice(kinds)
        number = max(self.told[told.id]) + 1
        size = self.of_moves.choice((1, 2, 3)) if kind == "resize" else 1
        hosts = [host for host in MACHINES if str(host) != told.host]
        if kind == "resize" and self.of_moves.random() < 0.5:
            hosts = [ProviderId(UUID(told.host))]
        self.of_moves.shuffle(hosts)
        move = Move(
            request_id=RequestId(UUID(int=number)),
            number=number,
            kind=kind,
            source=told.host,
            ends_by=self.now + timedelta(seconds=self.of_moves.choice((5, 300, 2000))),
            confirm_s=self.of_moves.choice((0, 50, 500)) if kind in ("migrate", "resize") else 0,
        )
        choices = tuple(Choice(name=str(host), share=share(host, size)) for host in hosts[:2])
        self.ordered[told.id] = number
        self.under_way.append(MoveInCell(cell="c1", instance=told.id, move=move, choices=choices))
        if self.of_moves.random() < 0.2:
            self._end(told, move, "abort")

    def _end(self, told: InstanceState, move: Move, how: MoveEnd) -> None:
        asked = structs.replace(move, asked=how)
        self.under_way.append(
            EndMoveInCell(
                cell="c1", instance=told.id, move=asked, sequence=max(told.sequence, move.number) + 1
            )
        )

    def _remove(self, told: InstanceState) -> None:
        self.removed.add(told.id)
        order = next(each for each in self.orders if each.instance == told.id)
        self.under_way.append(
            RemoveFromCell(
                cell="c1",
                instance=told.id,
                request_id=order.request_id,
                sequence=told.sequence + 1,
                issued_at=self.now,
            )
        )

    # Hosts

    async def _deliver(self, each: Message | SwapAnswered) -> None:
        match each:
            case StopInstance() | StartInstance():
                self._stop_or_start(each)
            case ReceiveInstance():
                self._receive(each)
            case InstanceMoved():
                self.told.setdefault(each.instance.id, {})[each.instance.sequence] = each.instance.state
                self._rebuild(each.instance)
            case MoveInCell() | EndMoveInCell() | InstanceStopped():
                self._conductor([each])
            case _:
                await super()._deliver(each)
        self._forget_what_is_gone()

    def _spawn(self, order: SpawnInstance) -> None:  # type: ignore[override]
        if order.image is not None and order.image.source.startswith(f"{order.instance}-"):
            assert order.image.source == self.last_images[order.instance], "it is built from an old image"
        was = (order.host, (order.instance, order.attempt)) in self.answers
        super()._spawn(order)
        self._runs(order.host, (order.instance, order.attempt), was=was)

    def _receive(self, order: ReceiveInstance) -> None:
        where = (order.host, (order.instance, order.attempt))
        was = where in self.answers
        source = (order.instance, order.source_attempt)
        if not was and where not in self.over and not order.live:
            assert (order.source, source) not in self.running, "it is taken over while it runs"
        super()._spawn(order)  # type: ignore[arg-type]
        self._runs(*where, was=was)

    def _redeploy(self, order: RedeployInstance | RespawnInstance) -> None:
        where = (order.host, (order.instance, order.attempt))
        if order.number < self.last.get(where, (0, False))[0]:
            return  # a later move stopped it
        super()._redeploy(order)
        if where[1] in self.attempts[order.host]:
            runs = self.rebuilds[order.instance, order.number].is_active
            self.last[where] = order.number, True
            self.running = self.running | {where} if runs else self.running - {where}

    def _image_for(self, order: SpawnInstance | DeployInstance | ReceiveInstance) -> str:
        if isinstance(order, ReceiveInstance):
            return self.images.get((order.source, (order.instance, order.source_attempt)), "")
        return super()._image_for(order)

    def _runs(self, host: ProviderId, attempt: Attempt, *, was: bool) -> None:
        if not was and attempt in self.attempts[host]:
            self.running.add((host, attempt))

    def _stop_or_start(self, order: StopInstance | StartInstance) -> None:
        where = (order.host, (order.instance, order.attempt))
        starts = isinstance(order, StartInstance)
        is_there = where[1] in self.attempts[order.host]
        if is_there and (order.number, starts) >= self.last.get(where, (0, False)):
            self.last[where] = order.number, starts
            if starts:
                self.running.add(where)
                self.images_of.pop(where, None)
            else:
                self.running.discard(where)
                if isinstance(order, StopInstance) and order.save_as:
                    self.images_of[where] = self.last_images[order.instance] = order.save_as
        about = {
            "cell": "c1",
            "instance": order.instance,
            "attempt": order.attempt,
            "host": order.host,
            "number": max(order.number, self.last.get(where, (0, False))[0]),
        }
        answer: Message
        if self.last.get(where, (0, starts))[1] and is_there:
            answer = InstanceSpawned(**about)  # type: ignore[arg-type]
        elif starts:
            answer = SpawnFailed(reason="it is not here", **about)  # type: ignore[arg-type]
        else:
            failure, saved = ("", self.images_of.get(where, "")) if is_there else ("it is not here", "")
            answer = InstanceStopped(failure=failure, saved=saved, **about)  # type: ignore[arg-type]
        if not self.has_faults or self.chance.random() < 0.7:
            self.under_way.append(answer)

    def _forget_what_is_gone(self) -> None:
        self.running = {where for where in self.running if where[1] in self.attempts[where[0]]}

    # What must hold

    async def check(self) -> None:
        await self.check_books()
        for host, attempts in self.attempts.items():
            for instance, attempt in attempts:
                paid = any([await self.amount_of(each, host) for each in self._holders(instance)])
                assert paid, f"attempt {attempt} of {instance} stands on {host}, and nobody pays for it"
        for row in self.rows.values():
            if row.moving is not None and row.state in ("moving", "moved"):
                await self._check_move(row)

    def _holders(self, instance: InstanceId) -> list[ConsumerId]:
        return [instance, *self.heirs_of(instance)]

    async def _check_move(self, row: Instance) -> None:
        """The instance holds what the destination needs, and the heir what the source had beyond that."""
        assert row.moving is not None
        if not row.moving.heir_attempt or row.moving.step == "returning":
            return
        assert row.host is not None
        source = row.moving.source.share
        need = row.host.share.amounts[0].amount
        assert await self.amount_of(row.id, row.host.share.host) == need
        rest = source.amounts[0].amount - (need if row.host.share.host == source.host else 0)
        heir = row.moving.source_heir().consumer
        assert await self.amount_of(heir, source.host) == max(0, rest)

    async def amount_of(self, consumer: ConsumerId, host: ProviderId) -> int:
        state = await self.books.consumer(consumer)
        return 0 if state is None else sum(each.amount for each in state.held if each.provider == host)

    async def check_the_end(self) -> None:
        await self.check()
        for order in self.orders:
            row = self.rows[order.instance]
            assert row.cleanups == (), row
            assert row.state in ("active", "shelved", "offloaded", "broken", "error", "deleted"), row
            assert (row.state == "deleted") == (row.id in self.removed)
            stands = [
                (host, each) for host, all_ in self.attempts.items() for each in all_ if each[0] == row.id
            ]
            held = [host for host in HOSTS if await self.amount_of(row.id, host)]
            for heir in self._holders(row.id)[1:]:
                assert not any([await self.amount_of(heir, host) for host in HOSTS]), row
            if row.state not in ("active", "shelved", "broken"):
                assert (stands, held) == ([], []), row
                continue
            assert row.host is not None
            assert stands == [(row.host.share.host, (row.id, row.host_attempt))], row
            assert held == [row.host.share.host]
            assert await self.amount_of(row.id, held[0]) == row.host.share.amounts[0].amount
            if row.state == "active":
                assert stands[0] in self.running, row
                self.check_image(row)
            elif row.state == "shelved":
                assert stands[0] not in self.running, row
        assert await self.books.audit() == ()


async def run_world(seed: int) -> MovingWorld:
    world = MovingWorld(seed)
    await world.begin(instances=4)
    for number in range(STEPS):
        await world.step()
        if number % 5 == 0:
            await world.check()
    await world.settle()
    await world.check_the_end()
    return world


@pytest.mark.parametrize("block", range(0, len(SEEDS), 20))
def test_in_every_world_moves_end_and_leave_one_instance_with_one_share(block: int) -> None:
    for seed in SEEDS[block : block + 20]:
        try:
            asyncio.run(run_world(seed))
        except AssertionError as wrong:
            raise AssertionError(f"seed {seed}: {wrong}") from wrong


def test_the_worlds_cover_every_kind_and_every_end() -> None:
    seen: set[tuple[str, str]] = set()
    rebuilt: set[str] = set()
    for seed in SEEDS:
        world = asyncio.run(run_world(seed))
        seen |= set(world.outcomes)
        rebuilt |= world.told_failures
    assert rebuilt >= {"", "no image", "not rebuilt by its deadline"}
    moves = {(kind, end) for kind in KINDS[:4] for end in ("confirmed", "failed", "aborted")}
    in_place = {
        (kind, end) for kind in ("shelve", "offload", "unshelve") for end in ("done", "failed", "aborted")
    }
    assert moves | in_place <= seen
    assert {(kind, end) for kind in ("migrate", "resize") for end in ("reverted", "")} <= seen
