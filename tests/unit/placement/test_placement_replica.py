"""All providers in memory: later states replace earlier ones, in whatever order they arrive."""

from uuid import UUID

from msgspec import structs

from engine.inventories import AggregateId, InventoryState, ProviderId, ProviderState, ProviderUsage
from placement_worker.view import ProviderReplica

HOST = ProviderId(UUID(int=1))
NIC = ProviderId(UUID(int=2))
RACK = AggregateId(UUID(int=9))


def a_host(
    revision: int = 1, used: int = 0, *, shape: int = 1, name: str = "host", internal: int = 1
) -> ProviderState:
    return ProviderState(
        internal=internal,
        id=HOST,
        name=name,
        root=HOST,
        shape=shape,
        generation=revision,
        revision=revision,
        inventories={"VCPU": InventoryState(total=8, used=used)},
        traits=("CUSTOM_A",),
        aggregates=(RACK,),
    )


def the_usage(revision: int, used: int, *, base: int = 1, internal: int = 1) -> ProviderUsage:
    return ProviderUsage(
        internal=internal, id=HOST, base=base, revision=revision, generation=revision, used={"VCPU": used}
    )


def told(*states: ProviderState) -> ProviderReplica:
    replica = ProviderReplica()
    replica.merge(states)
    return replica


def used(replica: ProviderReplica) -> tuple[int, int]:
    """The usage in the provider's state, and in the columns."""
    state = replica.get(HOST)
    row = replica.index.row_of(HOST)
    assert state is not None
    assert row is not None
    return state.inventories["VCPU"].used, replica.index.used(row, "VCPU")


def test_an_older_state_is_ignored() -> None:
    replica = told(a_host(revision=5, used=5))

    replica.merge([a_host(revision=4, used=4)])
    assert replica.use([the_usage(3, used=3)])

    assert used(replica) == (5, 5)


def test_usage_changes_only_the_used_amounts() -> None:
    replica = told(a_host())

    assert replica.use([the_usage(2, used=3)])

    assert used(replica) == (3, 3)
    assert replica.get(HOST) == a_host(revision=2, used=3)


def test_a_class_that_usage_does_not_name_is_not_in_use() -> None:
    replica = told(a_host(used=3))

    assert replica.use([structs.replace(the_usage(2, used=0), used={})])

    assert used(replica) == (0, 0)


def test_usage_for_an_unknown_state_shows_that_something_is_missing() -> None:
    assert not told(a_host(revision=1)).use([the_usage(7, used=3, base=6)])
    assert not ProviderReplica().use([the_usage(7, used=3)])
    assert not told(a_host(internal=1)).use([the_usage(2, used=3, internal=2)])


def test_a_new_name_is_found_and_the_old_one_is_not() -> None:
    replica = told(a_host())

    replica.merge([a_host(revision=2, name="other")])

    assert replica.named("host") is None
    assert replica.named("other") == a_host(revision=2, name="other")


def test_a_name_that_moved_to_another_provider_finds_that_one() -> None:
    nic = ProviderState(internal=2, id=NIC, name="nic", root=NIC, revision=1)
    replica = told(a_host(), nic)

    # Applied in the order of their ids: for a moment both have it.
    replica.merge([a_host(revision=2, name="nic"), structs.replace(nic, revision=2, name="host")])

    assert (replica.named("nic"), replica.named("host")) == (replica.get(HOST), replica.get(NIC))


def test_a_provider_that_moved_to_another_tree_is_found_there() -> None:
    nic = ProviderState(internal=2, id=NIC, name="nic", root=NIC, revision=1, shape=1)
    replica = told(a_host(), nic)

    replica.merge([structs.replace(nic, root=HOST, parent=HOST, revision=2, shape=2)])

    assert [state.id for state in replica.tree_of(NIC)] == [HOST, NIC]


def test_a_deleted_provider_is_not_found() -> None:
    replica = told(a_host())

    replica.delete([1])

    assert not list(replica)
    assert (replica.get(HOST), replica.named("host"), replica.tree_of(HOST)) == (None, None, [])
    assert not replica.has_name("traits", "CUSTOM_A")
    assert not replica.has_name("classes", "VCPU")
    assert not replica.index.members((RACK,)).any()


def test_a_new_provider_with_the_same_id_is_not_taken_for_the_deleted_one() -> None:
    replica = told(a_host(revision=9, used=4))

    replica.merge([a_host(revision=1, internal=2)])
    replica.delete([1])

    assert used(replica) == (0, 0)
    assert [state.internal for state in replica] == [2]


def test_providers_missing_in_a_full_read_are_deleted() -> None:
    replica = told(a_host(), ProviderState(internal=2, id=NIC, name="nic", root=NIC, revision=1))

    replica.end_reading_of_all({2}, replica.known_now())

    assert [state.id for state in replica] == [NIC]
    assert replica.index.row_of(HOST) is None


def test_a_usage_that_was_not_read_yet_is_not_written_over_a_later_state() -> None:
    replica = told(a_host())
    assert replica.use([the_usage(2, used=3)])

    replica.merge([a_host(revision=3, used=1, shape=2)])

    assert used(replica) == (1, 1)


def test_a_usage_that_came_before_its_state_is_in_it() -> None:
    replica = ProviderReplica()
    assert not replica.use([the_usage(4, used=3, base=2)])

    replica.merge([a_host(revision=2, used=1)])

    assert used(replica) == (3, 3)
