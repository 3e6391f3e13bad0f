"""Tests of the checkers: cases that they once reported wrongly, and that they still report the real ones."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

from msgspec import structs

from bus.messages.administration import CreateProvider, DeleteProvider
from bus.messages.placement import ClaimResources, Heir, SnapshotPage, SwapClaim
from engine.inventories import (
    AggregateId,
    ConsumerId,
    GroupId,
    Holder,
    InventoryState,
    ProviderId,
    ResourceAmount,
    ServerGroup,
    Share,
)
from engine.picture.picture import Picture
from kit.times import now
from laboratory.computes.faults import FaultScript
from placement_worker.admin_writes import WriteBatcher
from placement_worker.core.ledger import (
    ClaimChanges,
    Consumer,
    ForestKeys,
    ProviderBook,
    Touched,
    TreeBook,
    TreeChanges,
)
from placement_worker.view import ProviderView
from placement_worker.wiring import STANDARD
from tests.simulation.books_checker import BooksChecker
from tests.simulation.feeds_checker import HEARD, FeedsChecker
from tests.simulation.findings import Findings
from tests.simulation.fixtures import AGGREGATES, SHARES
from tests.simulation.groups_checker import GroupsChecker
from tests.simulation.host_history import HostHistories
from tests.simulation.loop import run_simulated
from tests.simulation.moves_checker import HELD_ONCE, MovesChecker
from tests.simulation.plan import PROJECT
from tests.simulation.process import EPOCH
from tests.simulation.real_instances import RealInstances
from tests.simulation.stored_books import InspectableStore
from tests.simulation.view_oracle import caught_up_replica
from tests.simulation.write_oracle import WriteOracle

HOST, PART, OTHER, POOL = (ProviderId(UUID(int=n)) for n in range(1, 5))
CONSUMER = ConsumerId(UUID(int=9))
WITHIN_S = 10.0
AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_pool_that_shares_with_the_host_is_no_second_host() -> None:
    assert (
        _broken(lambda books: _claimed_with_pool(books, of_host=AGGREGATES[:1], of_pool=AGGREGATES[:1])) == ""
    )


def test_a_pool_that_does_not_share_with_the_host_is_a_second_host() -> None:
    broken = _broken(lambda books: _claimed_with_pool(books, of_host=AGGREGATES[:1], of_pool=AGGREGATES[1:2]))
    assert broken == "no consumer on two hosts"


def test_a_share_that_was_reshaped_into_a_tree_that_was_moved_away_is_on_no_second_host() -> None:
    def reshaped(books: BooksChecker) -> None:
        _write_tree(books, HOST, _book(HOST), _book(PART, parent=HOST))
        _hold(books, (HOST, PART), is_claimed=True)
        _write_tree(books, PART, _book(PART, used=1), _book(OTHER, parent=PART))
        _hold(books, (HOST, OTHER), is_claimed=False)

    assert _broken(reshaped) == ""


def test_a_claim_of_two_hosts_is_a_second_host() -> None:
    def claimed(books: BooksChecker) -> None:
        _write_tree(books, HOST, _book(HOST))
        _write_tree(books, OTHER, _book(OTHER))
        _hold(books, (HOST,), is_claimed=True)
        _hold(books, (HOST, OTHER), is_claimed=True)

    assert _broken(claimed) == "no consumer on two hosts"


def test_a_host_with_more_instances_than_the_limit_is_seen() -> None:
    def claimed(books: BooksChecker) -> None:
        _write_tree(books, HOST, _book(HOST))
        for number in range(3):
            _hold(books, (HOST,), is_claimed=True, consumer=ConsumerId(UUID(int=20 + number)))

    assert _broken(claimed, instances_max=3) == ""
    assert _broken(claimed, instances_max=2) == "no host has more instances than the limit"


def test_a_cleanup_consumer_counts_on_its_host() -> None:
    def swapped(books: BooksChecker) -> None:
        _write_tree(books, HOST, _book(HOST))
        _write_tree(books, OTHER, _book(OTHER))
        _hold(books, (HOST,), is_claimed=True)
        cleanup = ConsumerId(UUID(int=30))
        there, here = ResourceAmount(OTHER, "VCPU", 1), ResourceAmount(HOST, "VCPU", 1)
        order = SwapClaim(
            cell="c1",
            consumer=CONSUMER,
            held_attempt=1,
            attempt=2,
            issued_at=AT,
            share=Share(host=OTHER, amounts=(there,)),
            heir=Heir(id=cleanup, type="CLEANUP"),
        )
        changes = ClaimChanges(
            consumers=(Consumer(id=CONSUMER, attempt=2), Consumer(id=cleanup, attempt=1)),
            held=((CONSUMER, (there,)), (cleanup, (here,))),
            touched=(Touched(HOST, 1, {"VCPU": 1}), Touched(OTHER, 1, {"VCPU": 1})),
            claimed=(Holder(CONSUMER, 2),),
        )
        books.written((order,), [changes])
        _hold(books, (HOST,), is_claimed=True, consumer=ConsumerId(UUID(int=31)))

    assert _broken(swapped, instances_max=2) == ""
    assert _broken(swapped, instances_max=1) == "no host has more instances than the limit"


def test_a_shape_may_stand_for_other_qualities_once_the_tombstone_of_its_tree_is_forgotten() -> None:
    async def written(findings: Findings, *, is_pruned: bool) -> None:
        books = InspectableStore()
        oracle = WriteOracle(findings, books)

        async def write(changes: TreeChanges) -> None:
            async with books.transaction() as transaction:
                oracle.opened()
                await transaction.lock_trees(ForestKeys(trees=frozenset({HOST})))
                await transaction.write_trees(changes)
            oracle.written((changes,))

        await write(_tree(HOST, _book(HOST)))
        if is_pruned:
            await write(structs.replace(_tree(HOST), removed=(HOST,)))
            await books.prune(now() + timedelta(seconds=1), EPOCH)
            await write(_tree(HOST, _book(HOST, traits=("CUSTOM_OTHER",))))
        else:
            books.tables.driver.execute("UPDATE inventories SET total = total + 1")
            oracle.written((_tree(HOST, _book(HOST)),))

    assert _broken_while(lambda findings: written(findings, is_pruned=True)) == ""
    assert _broken_while(lambda findings: written(findings, is_pruned=False)) == "qualities are law"


def test_a_read_need_not_show_uncommitted_writes() -> None:
    class Read(InspectableStore):
        """A store that says when a page was read."""

        was_read = asyncio.Event()

        async def snapshot_page(self, after: int, limit: int) -> SnapshotPage:
            page = await super().snapshot_page(after, limit)
            self.was_read.set()
            return page

    async def looked(findings: Findings) -> None:
        books = Read()
        await WriteBatcher(books, STANDARD, lambda: EPOCH).ask(CreateProvider(id=HOST, name="host"))

        async def write_and_die() -> None:
            await books.was_read.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(1), books.transaction() as transaction:
                    await transaction.write_trees(_tree(OTHER, _book(OTHER)))
                    await asyncio.Event().wait()

        dying = asyncio.create_task(write_and_die())
        seen = await caught_up_replica(ProviderView(books), books, findings)
        assert [state.name for state in seen] == ["host"]
        await asyncio.wait((dying,))

    assert _broken_while(looked) == ""


def test_a_change_that_a_scheduler_has_missed_is_seen_and_a_late_one_is_not() -> None:
    async def written(findings: Findings, *, reads: bool) -> None:
        books, picture = InspectableStore(), Picture()
        batcher = WriteBatcher(books, STANDARD, lambda: EPOCH)
        await batcher.ask(CreateProvider(id=HOST, name="host"))
        await batcher.ask(CreateProvider(id=OTHER, name="other"))
        picture.apply(books.rows.states_of((HOST,)))
        watching = asyncio.create_task(FeedsChecker(findings, books, {"s1": picture}).watch(WITHIN_S))
        await asyncio.sleep(WITHIN_S / 2)
        if reads:
            picture.apply(books.rows.states_of((OTHER,)))
        await batcher.ask(CreateProvider(id=POOL, name="written too late to be missed"))
        await asyncio.sleep(WITHIN_S)
        watching.cancel()

    assert _broken_while(lambda findings: written(findings, reads=True)) == ""
    assert _broken_while(lambda findings: written(findings, reads=False)) == HEARD


def test_a_deleted_provider_that_a_scheduler_still_has_is_seen() -> None:
    async def deleted(findings: Findings, *, hears: bool) -> None:
        books, picture = InspectableStore(), Picture()
        batcher = WriteBatcher(books, STANDARD, lambda: EPOCH)
        await batcher.ask(CreateProvider(id=HOST, name="host"))
        (state,) = books.rows.states_of((HOST,))
        picture.apply((state,))
        await batcher.ask(DeleteProvider(id=HOST))
        watching = asyncio.create_task(FeedsChecker(findings, books, {"s1": picture}).watch(WITHIN_S))
        await asyncio.sleep(WITHIN_S / 2)
        if hears:
            picture.prune((state.internal,))
        await asyncio.sleep(WITHIN_S)
        watching.cancel()

    assert _broken_while(lambda findings: deleted(findings, hears=True)) == ""
    assert _broken_while(lambda findings: deleted(findings, hears=False)) == HEARD


def _claimed_with_pool(
    books: BooksChecker, of_host: tuple[AggregateId, ...], of_pool: tuple[AggregateId, ...]
) -> None:
    _write_tree(books, HOST, _book(HOST, aggregates=of_host))
    _write_tree(books, POOL, _book(POOL, aggregates=of_pool, traits=(SHARES,)))
    _hold(books, (POOL, HOST), is_claimed=True)


def _broken(actions: Callable[[BooksChecker], None], instances_max: int = 0) -> str:
    async def do(findings: Findings) -> None:
        actions(
            BooksChecker(
                findings, HostHistories(findings, FaultScript()), RealInstances(findings), instances_max
            )
        )

    return _broken_while(do)


def _broken_while(main: Callable[[Findings], Awaitable[None]]) -> str:
    async def result() -> str:
        findings = Findings()
        await main(findings)
        return "" if findings.broken is None else findings.broken.promise

    return run_simulated(result())


def _book(
    provider: ProviderId,
    parent: ProviderId | None = None,
    aggregates: tuple[AggregateId, ...] = (),
    traits: tuple[str, ...] = (),
    used: int = 0,
) -> ProviderBook:
    return ProviderBook(
        id=provider,
        name=f"provider-{provider.int}",
        parent=parent,
        inventories={"VCPU": InventoryState(total=8, used=used)},
        aggregates=frozenset(aggregates),
        traits=frozenset(traits),
    )


def _tree(root: ProviderId, *books: ProviderBook) -> TreeChanges:
    tree = TreeBook(root=root, cell="c1", shape=1, providers={book.id: book for book in books})
    return TreeChanges(trees=(tree,), changed=tuple(book.id for book in books))


def _write_tree(books: BooksChecker, root: ProviderId, *providers: ProviderBook) -> None:
    books.written((), [_tree(root, *providers)])


def _hold(
    books: BooksChecker,
    providers: tuple[ProviderId, ...],
    *,
    is_claimed: bool,
    consumer: ConsumerId = CONSUMER,
) -> None:
    """One CPU of each provider; written by a claim if `is_claimed`, else by an administrator."""
    amounts = tuple(ResourceAmount(each, "VCPU", 1) for each in providers)
    before = {each.provider for each in books.held.get(consumer, ())}
    share = Share(host=HOST, amounts=amounts)
    order = ClaimResources(cell="c1", consumer=consumer, attempt=1, issued_at=AT, share=share)
    others = sum(
        HOST in [each.provider for each in held] for who, held in books.held.items() if who != consumer
    )
    changes = ClaimChanges(
        consumers=(Consumer(id=consumer, attempt=1),),
        held=((consumer, amounts),),
        touched=tuple(
            Touched(each, 1, {"VCPU": int(each in providers) + (others if each == HOST else 0)})
            for each in sorted({*before, *providers})
        ),
        claimed=(Holder(consumer, 1),) if is_claimed else (),
    )
    books.written((order,) if is_claimed else (), [changes])


APART = ServerGroup(id=GroupId(UUID(int=5)), policy="anti-affinity")
TOGETHER = ServerGroup(id=GroupId(UUID(int=6)), policy="affinity")


def _member(
    group: ServerGroup, number: int, host: ProviderId, cleanup: int = 0
) -> ClaimResources | SwapClaim:
    """The claim of a group's member for its first attempt. With `cleanup`, its swap to the second attempt, which
    leaves a cleanup consumer of that number.
    """
    amounts = (ResourceAmount(host, "VCPU", 1),)
    claim = ClaimResources(
        cell="c1",
        consumer=ConsumerId(UUID(int=number)),
        attempt=1,
        issued_at=AT,
        share=Share(host=host, amounts=amounts),
        project=PROJECT,
        group=group,
    )
    if not cleanup:
        return claim
    return SwapClaim(
        cell="c1",
        consumer=claim.consumer,
        held_attempt=1,
        attempt=2,
        issued_at=AT,
        share=claim.share,
        heir=Heir(id=ConsumerId(UUID(int=cleanup)), type="CLEANUP"),
        group=group,
    )


def _broken_by(*placed: tuple[ClaimResources | SwapClaim, dict[int, ProviderId]]) -> str:
    """The promise that breaks if these orders are granted one after another, and the consumers of each are then on
    these hosts.
    """

    async def do(findings: Findings) -> None:
        groups = GroupsChecker(findings, HostHistories(findings, FaultScript()), (APART, TOGETHER))
        for order, hosts in placed:
            placed_on = {ConsumerId(UUID(int=number)): host for number, host in hosts.items()}
            groups.committed([order], {(order.consumer, order.attempt)}, placed_on)

    return _broken_while(do)


def test_two_members_that_are_kept_apart_on_one_host_are_reported() -> None:
    promise = "members that are kept apart share no host"
    first, second = _member(APART, 1, HOST), _member(APART, 2, HOST)
    silent = _member(APART, 1, OTHER, cleanup=3)

    assert _broken_by((first, {1: HOST}), (second, {1: HOST, 2: HOST})) == promise
    assert _broken_by((first, {1: HOST}), (second, {2: HOST})) == "", "the first one was released"
    assert (
        _broken_by((first, {1: HOST}), (silent, {1: OTHER, 3: HOST}), (second, {1: OTHER, 2: HOST, 3: HOST}))
        == promise
    ), "the cleanup is still there"


def test_members_that_are_kept_together_on_two_hosts_are_reported() -> None:
    first, second = _member(TOGETHER, 1, HOST), _member(TOGETHER, 2, OTHER)

    assert _broken_by((first, {1: HOST}), (second, {1: HOST, 2: OTHER})) == (
        "members that are kept together have one host"
    )
    assert _broken_by((first, {1: HOST}), (second, {2: OTHER})) == ""


def test_a_member_of_another_project_is_reported() -> None:
    first, second = _member(APART, 1, HOST), structs.replace(_member(APART, 2, OTHER), project="rival")

    assert _broken_by((first, {1: HOST}), (second, {1: HOST, 2: OTHER})) == (
        "nobody acts with another's authority"
    )


MIGRATION, CLEANUP = ConsumerId(UUID(int=40)), ConsumerId(UUID(int=41))
# VCPU of both hosts, by number.
Held = dict[ConsumerId, dict[ProviderId, int]]


def _moved(to: ProviderId, heir: Heir | None = None, returns: ConsumerId | None = None) -> SwapClaim:
    """A swap to a share of two VCPU."""
    return SwapClaim(
        cell="c1",
        consumer=CONSUMER,
        held_attempt=1,
        attempt=2,
        issued_at=AT,
        share=Share(host=to, amounts=(ResourceAmount(to, "VCPU", 2),)),
        heir=heir,
        returns=returns,
    )


def _broken_by_move(order: SwapClaim, before: Held, after: Held) -> str:
    def held(by: Held) -> dict[ConsumerId, tuple[ResourceAmount, ...]]:
        return {
            who: tuple(ResourceAmount(host, "VCPU", amount) for host, amount in of_one.items())
            for who, of_one in by.items()
        }

    async def do(findings: Findings) -> None:
        granted = {(CONSUMER, 2), *((who, 1) for who in after if who != CONSUMER)}
        MovesChecker(findings).committed([order], granted, held(before), held(after))

    return _broken_while(do)


def test_a_migration_that_holds_other_than_what_is_left_over_is_reported() -> None:
    away, here = (
        _moved(OTHER, Heir(id=MIGRATION, type="MIGRATION")),
        _moved(HOST, Heir(id=MIGRATION, type="MIGRATION")),
    )
    three = {CONSUMER: {HOST: 3}}

    assert _broken_by_move(away, three, {CONSUMER: {OTHER: 2}, MIGRATION: {HOST: 3}}) == ""
    assert _broken_by_move(here, three, {CONSUMER: {HOST: 2}, MIGRATION: {HOST: 1}}) == ""
    assert _broken_by_move(here, {CONSUMER: {HOST: 2}}, {CONSUMER: {HOST: 2}}) == ""
    for wrong in ({HOST: 3}, {OTHER: 1}):
        assert _broken_by_move(here, three, {CONSUMER: {HOST: 2}, MIGRATION: wrong}) == HELD_ONCE
    assert _broken_by_move(away, three, {CONSUMER: {OTHER: 2}, MIGRATION: {HOST: 1}}) == HELD_ONCE


def test_a_migration_that_still_holds_something_after_the_way_back_is_reported() -> None:
    back = _moved(HOST, returns=MIGRATION)
    silent = _moved(HOST, Heir(id=CLEANUP, type="CLEANUP"), returns=MIGRATION)
    during = {CONSUMER: {OTHER: 2}, MIGRATION: {HOST: 2}}

    assert _broken_by_move(back, during, {CONSUMER: {HOST: 2}}) == ""
    assert _broken_by_move(back, during, {CONSUMER: {HOST: 2}, MIGRATION: {HOST: 2}}) == HELD_ONCE
    assert _broken_by_move(silent, during, {CONSUMER: {HOST: 2}, CLEANUP: {OTHER: 2}}) == ""
    assert _broken_by_move(silent, during, {CONSUMER: {HOST: 2}, CLEANUP: {OTHER: 1}}) == HELD_ONCE
