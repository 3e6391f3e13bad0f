"""The pages of the attempts that a host has."""

from uuid import UUID

from bus.messages.hosts import CheckHost, HostHolds
from compute_sim.core.attempts import AttemptRecord, AttemptState
from compute_sim.core.hosts import holdings
from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ProviderId

HOST, OTHER = ProviderId(UUID(int=7)), ProviderId(UUID(int=8))
ORDER = CheckHost(cell="c1", host=HOST, number=3)


def instance(number: int) -> InstanceId:
    return InstanceId(ConsumerId(UUID(int=number)))


def attempt(
    number: int,
    of: int = 1,
    *,
    host: ProviderId = HOST,
    state: AttemptState = AttemptState.BUILT,
    due_s: float | None = None,
) -> AttemptRecord:
    return AttemptRecord(
        cell="c1", host=host, instance=instance(number), attempt=of, state=state, due_s=due_s
    )


def held(page: HostHolds) -> list[tuple[int, int]]:
    return [(each.instance.int, each.attempt) for each in page.attempts]


def test_pages_follow_each_other_and_attempts_of_one_instance_stay_together() -> None:
    attempts = [attempt(1), attempt(2), attempt(2, of=2), attempt(3)]

    first = holdings(ORDER, attempts, page=2)
    second = holdings(CheckHost(cell="c1", host=HOST, number=3, after=first.next), attempts, page=2)
    third = holdings(CheckHost(cell="c1", host=HOST, number=3, after=second.next), attempts, page=2)

    assert [held(page) for page in (first, second, third)] == [[(1, 1)], [(2, 1), (2, 2)], [(3, 1)]]
    assert (third.after, third.next) == (instance(2), None)
