"""The pages of the attempts that a host has."""

from uuid import UUID

from bus.messages.hosts import CheckHost, HeldAttempt, HostHolds
from compute_sim.core.attempts import AttemptRecord, AttemptState
from compute_sim.core.hosts import holdings
from compute_sim.handlers import ComputeStore
from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ProviderId
from tests.simulation.loop import run_simulated

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


def test_all_attempts_fit_one_page_in_the_order_of_their_instances() -> None:
    page = holdings(ORDER, [attempt(2), attempt(1, of=3), attempt(1)])

    assert page == HostHolds(
        cell="c1",
        host=HOST,
        number=3,
        attempts=(
            HeldAttempt(instance=instance(1), attempt=1),
            HeldAttempt(instance=instance(1), attempt=3),
            HeldAttempt(instance=instance(2), attempt=1),
        ),
    )
    assert holdings(ORDER, []).attempts == ()


def test_pages_follow_each_other_and_attempts_of_one_instance_stay_together() -> None:
    attempts = [attempt(1), attempt(2), attempt(2, of=2), attempt(3)]

    first = holdings(ORDER, attempts, page=2)
    second = holdings(CheckHost(cell="c1", host=HOST, number=3, after=first.next), attempts, page=2)
    third = holdings(CheckHost(cell="c1", host=HOST, number=3, after=second.next), attempts, page=2)

    assert [held(page) for page in (first, second, third)] == [[(1, 1)], [(2, 1), (2, 2)], [(3, 1)]]
    assert (third.after, third.next) == (instance(2), None)


def test_a_host_has_what_is_not_over_and_what_is_still_being_destroyed() -> None:
    async def story() -> dict[ProviderId, list[int]]:
        store = ComputeStore(lambda: 0.0)
        await store.save(
            [
                attempt(1, state=AttemptState.BUILDING, due_s=1.0),
                attempt(2, state=AttemptState.WAITING),
                attempt(3),
                attempt(4, state=AttemptState.DESTROYED, due_s=1.0),
                attempt(5, state=AttemptState.DESTROYED),
                attempt(6, state=AttemptState.FAILED),
                attempt(7, host=OTHER),
                attempt(8, host=ProviderId(UUID(int=9))),
            ]
        )
        found = await store.of_hosts([HOST, OTHER, ProviderId(UUID(int=10))])
        return {host: sorted(each.instance.int for each in some) for host, some in found.items()}

    assert run_simulated(story()) == {HOST: [1, 2, 3, 4], OTHER: [7]}
