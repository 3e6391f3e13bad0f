"""The pages of the attempts that hosts have: those of one instance stay together."""

from uuid import UUID

from bus.messages.hosts import CheckHost, HostHolds
from compute_sim.core.attempts import AttemptRecord, AttemptState
from compute_sim.core.hosts import holdings
from compute_sim.handlers import ComputeStore
from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ProviderId

HOST, OTHER = ProviderId(UUID(int=7)), ProviderId(UUID(int=8))


def attempt(
    number: int, of: int = 1, *, host: ProviderId = HOST, state: AttemptState = AttemptState.BUILT
) -> AttemptRecord:
    return AttemptRecord("c1", host, InstanceId(ConsumerId(UUID(int=number))), of, state)


def test_pages_of_a_host_follow_each_other() -> None:
    attempts = [attempt(1), attempt(2), attempt(2, of=2), attempt(3)]
    pages: list[HostHolds] = []
    while not pages or pages[-1].next is not None:
        after = pages[-1].next if pages else None
        pages.append(holdings(CheckHost(cell="c1", host=HOST, number=3, after=after), attempts, page=2))

    told = [[(each.instance.int, each.attempt) for each in page.attempts] for page in pages]
    assert told == [[(1, 1)], [(2, 1), (2, 2)], [(3, 1)]]


async def test_pages_of_an_audit_have_all_that_is_not_over_by_instance() -> None:
    store = ComputeStore(lambda: 0.0)
    over = [attempt(2, state=AttemptState.DESTROYED), attempt(3, host=OTHER, state=AttemptState.FAILED)]
    waits = attempt(4, 2, host=OTHER, state=AttemptState.WAITING)
    await store.save([*over, attempt(1), attempt(3, 2), attempt(4), waits, attempt(5, host=OTHER)])

    first = await store.living((), None, 3)
    rest = await store.living((), first[-1].instance, 3)

    assert [(each.instance.int, each.attempt) for each in first] == [(1, 1), (3, 2), (4, 1), (4, 2)]
    assert [each.instance.int for each in rest] == [5]
