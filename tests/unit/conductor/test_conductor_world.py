"""A whole cell of values. Conductor and placement decide with their real rules; hosts and nodes build, fail and fall
silent; messages come late, twice and in any order. In every case each instance on a host has a claim, and everything
ends.
"""

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed, InstanceState, Rebuild
from bus.messages.cell import (
    DeployInstance,
    DeployProgressed,
    DestroyInstance,
    InstanceDestroyed,
    InstanceRedeployed,
    InstanceSpawned,
    PlaceInCell,
    RebuildInCell,
    RedeployInstance,
    RemoveFromCell,
    RespawnInstance,
    SpawnFailed,
    SpawnInstance,
    UndeployInstance,
)
from bus.messages.placement import ClaimResources, ReleaseClaim, ReportInventory, SwapClaim
from cell_conductor.core.decide import CellMessage, Decision, Due, HostsLost, Input, decide
from cell_conductor.core.rows import Instance, Question, SwapAnswered
from cell_conductor.settings import ConductorPace, ConductorSettings
from cell_conductor.wiring import rules_of
from engine.flavors import Flavor, Image, InstanceId, RequestId
from engine.hosts import NODE
from engine.inventories import (
    Choice,
    ConsumerId,
    ProviderId,
    ReportedInventory,
    ReportedProvider,
    ResourceAmount,
    Share,
    Vocabulary,
)
from engine.refusals import Claimed, ClaimVerdict, ShapeMoved
from placement_worker.core.claims import decide_claims, keys_of_orders
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, Sent
from placement_worker.core.reports import decide_reports, keys_of_reports
from tests.stores_in_memory import MemoryPlacementStore
from tests.unit.conductor.cell import drawing
from tests.unit.conductor.counted_on import check_claims, check_hosts

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = rules_of(
    ConductorSettings(
        attempt_timeout_s=20,
        deploy_timeout_s=40,
        undeploy_timeout_s=350,
    ),
    "c1",
    timedelta(seconds=60),
    ConductorPace(retry_delay_s_first=1, retry_delay_s_max=8, remind_every_s=300),
)
HOSTS = tuple(ProviderId(UUID(int=500 + n)) for n in range(5))
# Two of them are bare-metal nodes, which take other orders, and dead-letter those of hypervisors.
NODES = HOSTS[3:]
ROOM = 4
SEEDS = range(150)
# The share of the words about instances that are followed by an order to rebuild one.
REBUILT = 0.5

Attempt = tuple[InstanceId, int]


class World:
    """All state, and the messages under way; chance picks the next one to deliver."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.of_rebuilds = random.Random(f"{seed} rebuilds")
        self.now = NOON
        self.rows: dict[InstanceId, Instance] = {}
        self.books = MemoryPlacementStore()
        self.under_way: list[Message | SwapAnswered] = []
        self.orders: list[PlaceInCell] = []
        self.removed: set[InstanceId] = set()
        # Instances on a host, its answers, and the attempts that must not be built any more.
        self.attempts: dict[ProviderId, set[Attempt]] = {host: set() for host in HOSTS}
        self.answers: dict[tuple[ProviderId, Attempt], Message] = {}
        self.over: set[tuple[ProviderId, Attempt]] = set()
        # By instance and number: how a host ended each rebuild; and the last one that it began.
        self.rebuilds: dict[tuple[InstanceId, int], InstanceRedeployed] = {}
        self.last_rebuilds: dict[InstanceId, int] = {}
        # What each attempt runs, and what the cell said of the last rebuild, by sequence.
        self.images: dict[tuple[ProviderId, Attempt], str] = {}
        self.told_images: dict[InstanceId, dict[int, str]] = {}
        self.told_failures: set[str] = set()
        # The number of the last rebuild or move that was ordered.
        self.ordered: dict[InstanceId, int] = {}
        self.told: dict[InstanceId, dict[int, str]] = {}
        # The heirs that swaps have named, by instance and the attempt that was left.
        self.heirs: dict[tuple[ConsumerId, int], set[ConsumerId]] = {}
        self.draw = drawing()
        self.confirmed: list[tuple[InstanceId, int]] = []
        self.crashes = 0
        self.has_faults = True

    # The API level

    async def begin(self, instances: int) -> None:
        reports = [
            ReportInventory(
                cell="c1",
                root=host,
                providers=(
                    ReportedProvider(
                        id=host, name=str(host), inventories={"VCPU": ReportedInventory(total=ROOM)}
                    ),
                ),
            )
            for host in HOSTS
        ]
        async with self.books.transaction() as tx:
            forest = await tx.lock_trees(keys_of_reports(reports))
            vocabulary = Vocabulary(classes=frozenset({"VCPU"}), traits=frozenset())
            decision = decide_reports(forest, [Sent(each) for each in reports], vocabulary)
            await tx.write_trees(decision.changes)
        for number in range(1, instances + 1):
            await self._boot(number)

    def _hosts_to_choose_from(self) -> Sequence[ProviderId]:
        return HOSTS

    async def _boot(self, number: int) -> None:
        hosts = self.chance.sample(self._hosts_to_choose_from(), 1 + self.chance.randrange(3))
        chosen, *alternates = (
            Choice(name=str(host), share=share(host), kind=kind_of(host)) for host in hosts
        )
        order = PlaceInCell(
            cell="c1",
            instance=InstanceId(ConsumerId(UUID(int=number))),
            request_id=RequestId(UUID(int=1000 + number)),
            sequence=2,
            attempt=1,
            issued_at=self.now,
            ends_by=self.now + timedelta(seconds=self.chance.choice((5, 30, 100, 600))),
            flavor=Flavor(vcpus=1),
            chosen=chosen,
            alternates=tuple(alternates),
        )
        claim = ClaimResources(
            cell="c1", consumer=order.instance, attempt=1, issued_at=self.now, share=chosen.share
        )
        if await self._placement(claim) != Claimed():
            return
        self.orders.append(order)
        self.under_way.append(order)
        if self.chance.random() < 0.4:
            self.removed.add(order.instance)
            self.under_way.append(
                RemoveFromCell(
                    cell="c1",
                    instance=order.instance,
                    request_id=order.request_id,
                    sequence=3,
                    issued_at=self.now,
                )
            )

    def _rebuild(self, told: InstanceState) -> None:
        """For an instance that is active, or whose rebuild failed: the next rebuild has the next number."""
        may_be = told.state == "active" or told.rebuild is not None
        if self.has_faults and may_be and self.of_rebuilds.random() < REBUILT:
            self._order_rebuild(told)

    def _order_rebuild(self, told: InstanceState) -> None:
        number = max(self.told[told.id]) + 1
        rebuild = Rebuild(
            request_id=RequestId(UUID(int=number)),
            number=number,
            image=Image(source=str(number)),
            ends_by=self.now + timedelta(seconds=self.of_rebuilds.choice((5, 100, 600))),
        )
        self.ordered[told.id] = number
        self.under_way.append(RebuildInCell(cell="c1", instance=told.id, rebuild=rebuild))

    # Steps

    async def step(self) -> None:
        if self.has_faults and self.chance.random() < 0.2:
            self.now += timedelta(seconds=self.chance.choice((0.5, 3, 25)))
        due = [Due(row.id) for row in self.rows.values() if row.due_at is not None and row.due_at <= self.now]
        if due and (not self.has_faults or self.chance.random() < 0.5):
            self._conductor(self.chance.sample(due, len(due)))
        if not self.has_faults or self.chance.random() < 0.05:
            self._sweep()
        if self.under_way:
            n = self.chance.randrange(len(self.under_way))
            each = self.under_way[n]
            if not self.has_faults or self.chance.random() > 0.15:  # otherwise it comes again
                self.under_way[n] = self.under_way[-1]
                self.under_way.pop()
            await self._deliver(each)

    async def _deliver(self, each: Message | SwapAnswered) -> None:
        match each:
            case SpawnInstance() | DeployInstance():
                assert isinstance(each, DeployInstance) == (each.host in NODES), each
                self._spawn(each)
            case DestroyInstance() | UndeployInstance():
                assert isinstance(each, UndeployInstance) == (each.host in NODES), each
                self._destroy(each)
            case ReleaseClaim():
                await self._placement(each)
            case SwapClaim() | ClaimResources():
                await self._swap(each)
            case InstanceActive() | InstanceFailed() | InstanceDeleted():
                self.told.setdefault(each.instance.id, {})[each.instance.sequence] = each.instance.state
                self._note_image(each.instance)
                self._rebuild(each.instance)
            case RedeployInstance() | RespawnInstance():
                assert isinstance(each, RedeployInstance) == (each.host in NODES), each
                self._redeploy(each)
            case (
                SwapAnswered()
                | PlaceInCell()
                | RemoveFromCell()
                | RebuildInCell()
                | InstanceRedeployed()
                | InstanceSpawned()
                | SpawnFailed()
                | InstanceDestroyed()
                | DeployProgressed()
            ):
                self._conductor([each])
            case _:
                raise TypeError(each)

    def _note_image(self, told: InstanceState) -> None:
        if told.state == "active" and told.rebuild is not None and not told.rebuild.failure:
            self.told_images.setdefault(told.id, {})[told.sequence] = told.rebuild.image.source
        if told.rebuild is not None:
            self.told_failures.add(told.rebuild.failure)

    def _conductor(self, inputs: Sequence[Input]) -> None:
        named = {each.instance for each in inputs}
        rows = {id_: row for id_, row in self.rows.items() if id_ in named}
        decision = decide(rows, inputs, self.now, RULES, draw=self.draw)
        self.rows |= {row.id: row for row in decision.rows}
        for forgotten in decision.forgotten:
            del self.rows[forgotten]
        if self.has_faults and self.chance.random() < 0.1:
            # The conductor dies between commit and publish. The senders get no acknowledgement and send again; timers
            # do not.
            self.crashes += 1
            self.under_way += [
                each for each in inputs if not isinstance(each, Due | SwapAnswered | HostsLost)
            ]
            return
        self._note_heirs(decision)
        self.under_way += decision.swaps
        self.under_way += [saying.message for saying in decision.said]
        self.confirmed += [(each.instance, each.sequence) for each in decision.said if each.sequence]
        if self.chance.random() < 0.5:
            self._clear()

    def _note_heirs(self, decision: Decision) -> None:
        for swap in decision.swaps:
            if isinstance(swap, SwapClaim) and swap.heir is not None:
                assert swap.heir.id != uuid5(swap.consumer, str(swap.held_attempt)), "it can be foreseen"
                self.heirs.setdefault((swap.consumer, swap.held_attempt), set()).add(swap.heir.id)

    def heirs_of(self, instance: InstanceId) -> list[ConsumerId]:
        return [heir for (each, _), heirs in self.heirs.items() if each == instance for heir in sorted(heirs)]

    def _clear(self) -> None:
        for instance, sequence in self.confirmed:
            if (row := self.rows.get(instance)) is not None:
                left = tuple(each for each in row.outbox if each.sequence != sequence)
                self.rows[instance] = structs.replace(row, outbox=left)
        self.confirmed.clear()

    def _sweep(self) -> None:
        self._clear()
        unsaid = [(row.id, each) for row in self.rows.values() for each in row.outbox]
        self.under_way += [each.message for _, each in unsaid]
        self.confirmed += [(instance, each.sequence) for instance, each in unsaid]

    # Hosts

    def _spawn(self, order: SpawnInstance | DeployInstance) -> None:
        attempt = (order.instance, order.attempt)
        where = (order.host, attempt)
        if where in self.over:
            return
        if order.host in NODES and self.chance.random() < 0.5:
            self.under_way.append(
                DeployProgressed(cell="c1", instance=order.instance, attempt=order.attempt, host=order.host)
            )
        if where not in self.answers:
            self.answers[where] = self._build(order)
        # A silent host has built the instance, and reports it much later, if ever.
        if not self.has_faults or self.chance.random() < 0.7:
            self.under_way.append(self.answers[where])

    def _build(self, order: SpawnInstance | DeployInstance) -> CellMessage:
        about = {
            "cell": "c1",
            "instance": order.instance,
            "attempt": order.attempt,
            "host": order.host,
        }
        if self.chance.random() < 0.35:
            return SpawnFailed(reason="no image", **about)  # type: ignore[arg-type]
        self.attempts[order.host].add((order.instance, order.attempt))
        self.images[order.host, (order.instance, order.attempt)] = self._image_for(order)
        return InstanceSpawned(kind=kind_of(order.host), **about)  # type: ignore[arg-type]

    def _image_for(self, order: SpawnInstance | DeployInstance) -> str:
        return order.image.source if order.image is not None else ""

    def _redeploy(self, order: RedeployInstance | RespawnInstance) -> None:
        name = (order.instance, order.number)
        is_there = (order.instance, order.attempt) in self.attempts[order.host]
        if name not in self.rebuilds:
            if order.number < self.last_rebuilds.get(order.instance, 0):
                return
            failure = "" if is_there and self.of_rebuilds.random() < 0.7 else "no image"
            if is_there:
                self.last_rebuilds[order.instance] = order.number
                self.images[order.host, (order.instance, order.attempt)] = order.image.source
            self.rebuilds[name] = InstanceRedeployed(
                cell="c1",
                instance=order.instance,
                attempt=order.attempt,
                host=order.host,
                number=order.number,
                failure=failure,
                is_active=not failure,
            )
        if not self.has_faults or self.of_rebuilds.random() < 0.7:
            self.under_way.append(self.rebuilds[name])

    def _destroy(self, order: DestroyInstance | UndeployInstance) -> None:
        if self.has_faults and self.chance.random() < 0.3:
            return  # it will be reminded
        attempt = (order.instance, order.attempt)
        self.attempts[order.host].discard(attempt)
        self.over.add((order.host, attempt))
        self.under_way.append(
            InstanceDestroyed(cell="c1", instance=order.instance, attempt=order.attempt, host=order.host)
        )

    # Placement

    async def _swap(self, swap: Question) -> None:
        is_away = self.has_faults and self.chance.random() < 0.2
        verdict = None if is_away else await self._placement(swap)
        is_lost = self.has_faults and self.chance.random() < 0.2
        self.under_way.append(SwapAnswered(swap.consumer, swap, None if is_lost else verdict))

    async def _placement(self, order: ClaimOrder) -> ClaimVerdict:
        async with self.books.transaction() as tx:
            ledger = await tx.lock_claims(keys_of_orders([order]))
            decision = decide_claims(ledger, [Sent(order)], self.now, timedelta(hours=24))
            await tx.write_claims(decision.changes)
        (verdict,) = decision.verdicts
        assert not isinstance(verdict, ShapeMoved)
        return verdict

    async def holds(self, consumer: ConsumerId) -> ProviderId | None:
        """The hosts where it holds something."""
        order = ReleaseClaim(cell="c1", consumer=consumer, attempt=1, issued_at=self.now)
        async with self.books.transaction() as tx:
            ledger = await tx.lock_claims(keys_of_orders([order]))
            # Rows that only a lookup created are removed.
            is_new = ledger.consumers[consumer.int].attempt == 0
            await tx.write_claims(ClaimChanges(forgotten=(consumer,) if is_new else ()))
        held = ledger.held.get(consumer.int, ())
        return held[0].provider if held else None

    # What must hold

    async def check_books(self) -> None:
        """The cell's answer to an audit."""
        unplaced = [each.instance for each in self.orders if each.instance not in self.rows]
        await check_claims(self.rows, self.books, RULES, under_way=self.under_way, unplaced=unplaced)
        if not self.has_faults and not self.under_way:
            check_hosts(self.rows, RULES, self.attempts)

    async def check(self) -> None:
        await self.check_books()
        for host, attempts in self.attempts.items():
            for instance, attempt in attempts:
                holders = (instance, *self.heirs.get((instance, attempt), ()))
                paid = [await self.holds(holder) for holder in holders]
                assert host in paid, (
                    f"attempt {attempt} of {instance} stands on {host}, and nobody pays for it"
                )

    async def settle(self) -> None:
        self.has_faults = False
        for _ in range(40):
            while self.under_way:
                await self.step()
            self.now += timedelta(seconds=400)
            await self.step()
        while self.under_way:
            await self.step()

    def check_image(self, row: Instance) -> None:
        """An active instance runs the image that was ordered last, of those that its cell said were done."""
        assert row.host is not None
        told = self.told_images.get(row.id, {})
        ordered = told[max(told)] if told else ""
        image = self.images[row.host.share.host, (row.id, row.host_attempt)]
        # It may have been unshelved from its own image since.
        assert image == ordered or image.startswith(f"{row.id}-"), row

    async def check_the_end(self) -> None:
        await self.check()
        for order in self.orders:
            ends = [state for _, state in sorted(self.told[order.instance].items())]
            row = self.rows[order.instance]
            if row.rebuild is None:
                assert ends in (
                    ["active"],
                    ["error"],
                    ["active", "deleted"],
                    ["error", "deleted"],
                    ["deleted"],
                )
            assert ends.count("deleted") <= 1
            assert ends[-1] == ("error" if row.state == "broken" else row.state)
            assert min(self.told[order.instance]) > order.sequence
            assert (ends[-1] == "deleted") == (order.instance in self.removed)
            assert row.cleanups == ()
            stands = [
                host for host, attempts in self.attempts.items() for each, _ in attempts if each == row.id
            ]
            held = await self.holds(row.id)
            if row.state == "active":
                self.check_image(row)
            if row.state in ("active", "broken"):
                assert row.host is not None
                assert stands == [held] == [row.host.share.host]
            else:
                assert (stands, held) == ([], None)
            for heir in self.heirs_of(row.id):
                assert await self.holds(heir) is None
        assert await self.books.audit() == ()


def kind_of(host: ProviderId) -> str:
    return NODE if host in NODES else ""


def share(host: ProviderId) -> Share:
    return Share(host=host, amounts=(ResourceAmount(provider=host, resource="VCPU", amount=1),))


async def run_world(seed: int) -> World:
    world = World(seed)
    await world.begin(instances=12)
    for n in range(150):
        await world.step()
        if n % 3 == 0:
            await world.check()
    await world.settle()
    await world.check_the_end()
    return world


@pytest.mark.parametrize("block", range(0, len(SEEDS), 50))
def test_in_every_world_everything_ends_and_each_instance_on_a_host_has_a_claim(block: int) -> None:
    for seed in SEEDS[block : block + 50]:
        try:
            asyncio.run(run_world(seed))
        except AssertionError as wrong:
            raise AssertionError(f"seed {seed}: {wrong}") from wrong


def test_the_worlds_cover_every_end_and_every_path_to_it() -> None:
    ends: set[str] = set()
    reasons: set[str] = set()
    attempts: set[int] = set()
    rebuilds: set[str] = set()
    crashes = 0
    for seed in range(40):
        world = asyncio.run(run_world(seed))
        for row in world.rows.values():
            ends.add(row.state)
            reasons |= {each.reason.split(" ")[0] for each in row.failures} | {row.reason}
            attempts.add(row.attempt)
        rebuilds |= world.told_failures
        crashes += world.crashes
    assert crashes > 0
    assert ends == {"active", "broken", "error", "deleted"}
    assert {"", "no image", "not rebuilt by its deadline"} <= rebuilds
    assert {1, 2, 3} <= attempts
    assert {
        "no",
        "not",
        "does",
        "no alternate is left",
        "the time of the request is up",
    } <= reasons
