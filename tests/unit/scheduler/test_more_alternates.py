"""The answer to a cell that has used up the hosts for an instance: once for each question, and never against a delete."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from msgspec import structs

from bus.messages.build import AlternatesSpent, AttemptFailed, BuildInstance, InstanceActive, InstanceState
from bus.messages.cell import MoreAlternates
from bus.workers.handling import Received, Said, Tell
from engine.flavors import Flavor
from engine.picture.picture import Picture
from engine.requests.reading import Alternative
from scheduler_worker.core.instances.history import decoded, encoded
from scheduler_worker.core.instances.lifecycle import deleted, heard
from scheduler_worker.core.instances.rows import InstanceRow, messages_of
from scheduler_worker.outbox import Outbox, OutboxNotes
from scheduler_worker.requests.cell_events import FAILED_HOSTS_MAX, AlternatesFinder
from scheduler_worker.store import InstanceQuery, NewRequest
from tests.plugins import standard_plugins
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.choosing.scheduler_worlds import a_picture, a_spec, a_state, vcpus
from tests.unit.scheduler.test_scheduler_instances_hosts import a_row

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def tried(*hosts: str, refused: Sequence[str] = ()) -> tuple[AttemptFailed, ...]:
    return tuple(
        AttemptFailed(attempt=number, host=host, reason="no disk", is_refused=host in refused)
        for number, host in enumerate(hosts, 1)
    )


class Scheduler:
    """The handler of the event, on a store with one instance that was placed in cell c1."""

    def __init__(
        self, picture: Picture, state: str = "placed", accepted: tuple[Alternative, ...] = ()
    ) -> None:
        self.store = MemorySchedulerStore()
        self.held: list[InstanceRow] = []
        self.made_sure = 0
        self.said: list[Said] = []
        row = a_row()
        told = structs.replace(row.told, state=state, cell="c1", host="h1", attempt=1, sequence=2)
        spec = encoded(a_spec(), BuildInstance(flavor=Flavor(vcpus=1)), accepted)
        told = structs.replace(told, flavor=accepted[0].flavor if accepted else None)
        self.row = structs.replace(row, told=told, spec=spec)
        self._outbox = Outbox(self.store, OutboxNotes(self.store, row.ends_by - row.issued_at, lambda: NOON))
        finder = AlternatesFinder(
            self.store,
            picture,
            standard_plugins(),
            lambda: NOON,
            alternates_max=2,
            make_sure=self._make_sure,
            hold=self.held.extend,
            chance=random.Random(1),
        )
        (self._handler,) = finder.handlers(()).values()

    async def _make_sure(self) -> None:
        self.made_sure += 1

    async def begin(self) -> "Scheduler":
        async with self.store.transaction() as tx:
            await tx.accept([NewRequest(self.row.told.request_id, b"", (self.row,))])
        return self

    async def hear(
        self,
        *failures: AttemptFailed,
        sequence: int = 5,
        cell: str = "c1",
        flavor: Flavor | None = None,
    ) -> InstanceRow:
        """The row after the cell has said that all of these hosts are used up."""
        said = InstanceState(
            id=self.row.id,
            request_id=self.row.told.request_id,
            sequence=sequence,
            state="swapping",
            cell=cell,
            attempt=1,
            failures=failures,
            flavor=flavor,
        )
        ask = Received(AlternatesSpent(cell=cell, instance=said), "id", "", "conductor", "", 0, cell=cell)
        assert callable(self._handler)
        async with self._outbox.transaction() as tx:
            self.said += await self._handler([ask], tx)
        return await self.now()

    async def now(self) -> InstanceRow:
        (row,) = await self.store.instances(InstanceQuery(instances=(self.row.id,)))
        return row


def answer_in(row: InstanceRow) -> MoreAlternates:
    (message,) = messages_of(row)
    assert isinstance(message, MoreAlternates)
    return message


def four() -> Picture:
    return a_picture(*(a_state(f"h{number}", internal=number) for number in range(1, 5)))


@pytest.mark.asyncio
async def test_hosts_that_were_not_tried_are_given_and_held() -> None:
    scheduler = await Scheduler(four()).begin()

    row = await scheduler.hear(*tried("h1", "h2", refused=("h2",)))

    answer = answer_in(row)
    assert (answer.spent, answer.sequence, answer.reason) == (5, 5, "")
    assert {each.name for each in answer.alternates} == {"h3", "h4"}
    assert row.told.state == "building"
    assert [each.id for each in scheduler.held] == [row.id]
    assert scheduler.made_sure == 0


@pytest.mark.asyncio
async def test_a_late_or_repeated_event_changes_nothing() -> None:
    scheduler = await Scheduler(four()).begin()
    first = await scheduler.hear(*tried("h1", "h2"))

    assert await scheduler.hear(*tried("h1", "h2")) == first
    assert await scheduler.hear(*tried("h1"), sequence=4) == first
    assert await scheduler.hear(*tried("h1", "h2"), sequence=9, cell="c2") == first
    second = await scheduler.hear(*tried("h1", "h2", "h3"), sequence=9)
    assert (answer_in(second).spent, [each.name for each in answer_in(second).alternates]) == (9, ["h4"])


@pytest.mark.asyncio
async def test_a_repeated_question_gets_the_same_answer_and_holds_no_host_again() -> None:
    scheduler = await Scheduler(four()).begin()
    await scheduler.hear(*tried("h1", "h2"))
    held = list(scheduler.held)

    await scheduler.hear(*tried("h1", "h2"))

    first, second = scheduler.said
    assert isinstance(first, Tell)
    assert isinstance(second, Tell)
    assert isinstance(first.message, MoreAlternates)
    assert second.message == first.message
    assert [each.id for each in held] == [scheduler.row.id]
    assert scheduler.held == held


@pytest.mark.asyncio
async def test_a_refused_host_is_given_again_only_if_no_other_fits_and_a_failed_one_never() -> None:
    scheduler = await Scheduler(four()).begin()

    row = await scheduler.hear(*tried("h1", "h2", "h3", "h4", refused=("h2",)))

    assert [each.name for each in answer_in(row).alternates] == ["h2"]
    assert scheduler.made_sure == 1


@pytest.mark.asyncio
async def test_when_no_host_fits_the_cell_is_told_why() -> None:
    full = a_picture(a_state("h1", vcpus(1, used=1)), a_state("h2", internal=2))
    scheduler = await Scheduler(full).begin()

    answer = answer_in(await scheduler.hear(*tried("h2")))

    assert (answer.alternates, scheduler.made_sure) == ((), 1)
    assert answer.reason.startswith("no host among 2: ")


@pytest.mark.asyncio
async def test_after_so_many_failed_hosts_no_more_are_tried() -> None:
    names = [f"h{number}" for number in range(1, FAILED_HOSTS_MAX + 3)]
    picture = a_picture(*(a_state(name, internal=number) for number, name in enumerate(names, 1)))
    scheduler = await Scheduler(picture).begin()

    one_less = await scheduler.hear(*tried(*names[: FAILED_HOSTS_MAX - 1]))
    assert answer_in(one_less).alternates
    answer = answer_in(await scheduler.hear(*tried(*names[:FAILED_HOSTS_MAX]), sequence=9))

    assert answer.alternates == ()
    assert answer.reason == f"{FAILED_HOSTS_MAX} hosts have failed to build it, and no more are tried"


@pytest.mark.asyncio
@pytest.mark.parametrize("state", ["deleting", "active", "error"])
async def test_only_an_instance_that_is_placed_gets_more(state: str) -> None:
    scheduler = await Scheduler(four(), state).begin()

    assert await scheduler.hear(*tried("h1")) == scheduler.row
    assert scheduler.held == []


@pytest.mark.asyncio
async def test_it_goes_on_like_a_placed_one() -> None:
    row = await (await Scheduler(four()).begin()).hear(*tried("h1"))

    gone = deleted(row, NOON)
    active = heard(
        row,
        InstanceActive(
            cell="c1",
            instance=structs.replace(
                row.told, sequence=row.told.sequence + 1, state="active", host="h3", attempt=2
            ),
        ),
        NOON,
    )

    assert gone is not None
    assert gone.told.state == "deleting"
    assert active is not None
    assert (active.told.state, active.told.host, active.choices, active.unsaid) == ("active", "h3", (), False)


LARGE = Alternative("large", Flavor(name="large", vcpus=6), a_spec(VCPU=6))
MEDIUM = Alternative("medium", Flavor(name="medium", vcpus=4), a_spec(VCPU=4))
SMALL = Alternative("small", Flavor(name="small", vcpus=1), a_spec(VCPU=1))


def of_sizes(**free: int) -> Picture:
    """Hosts with so many free processors."""
    return a_picture(
        *(
            a_state(name, vcpus(count), internal=number)
            for number, (name, count) in enumerate(free.items(), 1)
        )
    )


def vcpus_in(answer: MoreAlternates) -> dict[str, int]:
    return {each.name: each.share.amounts[0].amount for each in answer.alternates}


@pytest.mark.asyncio
async def test_the_answer_says_of_which_accepted_flavor_the_hosts_are() -> None:
    scheduler = await Scheduler(of_sizes(h1=8, h2=8, h3=4), accepted=(LARGE, MEDIUM, SMALL)).begin()

    answer = answer_in(await scheduler.hear(*tried("h1"), flavor=LARGE.flavor))

    assert (answer.flavor, vcpus_in(answer)) == (LARGE.flavor, {"h2": 6})


@pytest.mark.asyncio
async def test_when_its_flavor_fits_nowhere_the_next_one_that_it_accepts_is_tried() -> None:
    scheduler = await Scheduler(of_sizes(h1=8, h2=2, h3=4), accepted=(LARGE, MEDIUM, SMALL)).begin()

    row = await scheduler.hear(*tried("h1"), flavor=LARGE.flavor)

    answer = answer_in(row)
    assert (answer.flavor, vcpus_in(answer), answer.reason) == (MEDIUM.flavor, {"h3": 4}, "")
    assert (row.told.flavor, [each.flavor for each in row.told.passed_over]) == (MEDIUM.flavor, ["large"])
    assert decoded(row.current_spec) == MEDIUM.spec


@pytest.mark.asyncio
async def test_a_cell_that_has_taken_a_worse_flavor_goes_on_with_it() -> None:
    scheduler = await Scheduler(of_sizes(h1=8, h2=8, h3=2), accepted=(LARGE, MEDIUM, SMALL)).begin()

    answer = answer_in(await scheduler.hear(*tried("h1"), flavor=MEDIUM.flavor))

    assert (answer.flavor, vcpus_in(answer)) == (MEDIUM.flavor, {"h2": 4})


@pytest.mark.asyncio
async def test_when_no_accepted_flavor_fits_the_worst_one_says_why() -> None:
    scheduler = await Scheduler(of_sizes(h1=8), accepted=(LARGE, MEDIUM)).begin()

    answer = answer_in(await scheduler.hear(*tried("h1"), flavor=LARGE.flavor))

    assert (answer.alternates, answer.flavor) == ((), MEDIUM.flavor)
    assert answer.reason.startswith("no host among 1: ")
