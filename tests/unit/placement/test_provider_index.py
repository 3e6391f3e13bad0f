"""A provider index that changes: providers are created, deleted, moved and used, one at a time."""

import itertools

import numpy as np
from msgspec import structs

from engine.candidates.columns import At, Flags
from engine.candidates.provider_index import CHANGES_MAX, KEPT_MAX, ProviderIndex
from engine.candidates.query import Preferred
from engine.candidates.suitable import KEPT_REQUIRED_MAX, suitable_providers
from engine.inventories import InventoryState
from tests.contracts.placement_orders import provider
from tests.unit.placement.candidate_worlds import SHARES, World, asking

ONE_CPU = asking(VCPU=1)


def test_a_child_is_found_once_all_its_ancestors_are_known() -> None:
    complete = World()
    states = [
        complete.has("host", VCPU=1),
        complete.has("numa", under="host"),
        complete.has("child", under="numa", VCPU=1),
    ]
    index = ProviderIndex()
    planted = []

    for state in reversed(states):
        index.put(state)
        index.attach_trees()
        planted.append(int(index.attached.sum()))

    assert planted == [0, 0, 3]


def test_used_amounts_are_subtracted_at_once_and_free_again_when_released() -> None:
    world = World()
    host = world.has("host", VCPU=4, DISK_GB=5)

    world.index.use([(host.internal, {"VCPU": 4})])
    assert world.finds(ONE_CPU) == set()
    assert world.finds(asking(DISK_GB=5)) == {"DISK_GB:5@host"}

    world.index.use([(host.internal, {"VCPU": 3})])
    assert world.finds(ONE_CPU) == {"VCPU:1@host"}


def test_usage_of_an_unknown_provider_is_ignored() -> None:
    world = World()
    world.has("host", VCPU=4)

    world.index.use([(99, {"VCPU": 4})])
    world.index.drop(99)

    assert world.finds(ONE_CPU) == {"VCPU:1@host"}


def test_a_deleted_provider_leaves_nothing_to_the_next_one_in_its_row() -> None:
    world = World()
    world.has("old", VCPU=4, traits=("CUSTOM_A", SHARES), aggregates=("rack",))
    world.loses("old")

    world.has("new", DISK_GB=5)

    assert world.index.rows == 1
    assert world.finds(ONE_CPU) == set()
    assert world.finds(structs.replace(asking(DISK_GB=5), required=(("CUSTOM_A",),))) == set()
    assert world.index.sharing == set()


def test_a_reused_id_belongs_to_the_later_provider() -> None:
    world = World()
    old = world.has("host", VCPU=4)

    world.index.put(structs.replace(old, internal=77, inventories={"DISK_GB": InventoryState(total=5)}))
    world.index.drop(old.internal)

    assert world.finds(ONE_CPU) == set()
    assert world.finds(asking(DISK_GB=5)) == {"DISK_GB:5@host"}


def test_a_child_that_moves_is_found_in_its_new_tree() -> None:
    world = World()
    for name in ("h1", "h2"):
        world.has(name, DISK_GB=5)
    world.has("child", under="h1", VCPU=4)
    assert world.finds(asking(VCPU=1, DISK_GB=1)) == {"DISK_GB:1@h1 VCPU:1@child"}

    world.has("child", under="h2", VCPU=4)

    assert world.finds(asking(VCPU=1, DISK_GB=1)) == {"DISK_GB:1@h2 VCPU:1@child"}


def test_removed_inventory_and_traits_are_gone() -> None:
    world = World()
    world.has("host", VCPU=4, DISK_GB=5, traits=("CUSTOM_A",))

    world.has("host", VCPU=4)

    assert world.finds(asking(DISK_GB=1)) == set()
    assert world.finds(structs.replace(ONE_CPU, required=(("CUSTOM_A",),))) == set()


def test_more_providers_and_more_traits_than_there_was_room_for_at_first() -> None:
    world = World()
    for number in range(200):
        world.has(f"h{number}", VCPU=4, traits=(f"CUSTOM_T{number}",))

    of_the_last = structs.replace(ONE_CPU, required=(("CUSTOM_T199", "CUSTOM_T3"),))

    assert world.finds(of_the_last) == {"VCPU:1@h3", "VCPU:1@h199"}
    assert len(world.finds(ONE_CPU)) == 200


def test_each_change_of_a_row_is_counted_for_caches_of_derived_values() -> None:
    world = World()
    host = world.has("host", VCPU=4)
    row = world.index.row_of(provider("host"))
    assert row is not None
    seen = [world.index.changes[row]]

    world.has("host", VCPU=8)
    seen.append(world.index.changes[row])
    world.index.use([(host.internal, {"VCPU": 1})])
    seen.append(world.index.changes[row])
    world.has("other", VCPU=8)

    assert seen[0] < seen[1] < seen[2] == world.index.changes[row]


def test_traits_and_classes_that_come_and_go_take_no_more_room_than_those_there_are() -> None:
    world = World()
    world.has("other", VCPU=4, traits=("CUSTOM_STAYS",))

    host = world.has("host")
    for number in range(200):
        world.index.put(
            structs.replace(
                host,
                traits=("CUSTOM_STAYS", f"CUSTOM_T{number}"),
                inventories={f"CUSTOM_C{number}": InventoryState(total=4)},
            )
        )

    assert set(world.index.stocks) == {"VCPU", "CUSTOM_C199"}
    assert world.finds(structs.replace(ONE_CPU, required=(("CUSTOM_STAYS",),))) == {"VCPU:1@other"}
    of_the_last = structs.replace(asking(CUSTOM_C199=1), required=(("CUSTOM_T199",),))
    assert world.finds(of_the_last) == {"CUSTOM_C199:1@host"}
    assert world.finds(structs.replace(of_the_last, required=(("CUSTOM_T198", "CUSTOM_T0"),))) == set()
    assert world.index.traits.words == 1


class Questioner:
    """Asks one question about all providers of an index, and notes for which rows it had to be answered."""

    def __init__(self, index: ProviderIndex) -> None:
        self._index = index
        self._rows: list[int] | None = None

    def _answer(self, at: At) -> tuple[Flags, ...]:
        rows = np.arange(self._index.rows)[at]
        self._rows = sorted(rows.tolist())
        return (rows % 2 == 0, self._index.attached[at].copy())

    def asked_for(self) -> list[int] | None:
        """The rows for which the answer was computed now; None if it was kept."""
        self._rows = None
        even, attached = self._index.cached("even rows, and attached ones", self._answer)
        assert even.tolist() == [row % 2 == 0 for row in range(self._index.rows)]
        assert attached.tolist() == self._index.attached[: self._index.rows].tolist()
        return self._rows


def test_answers_are_kept_but_for_rows_of_which_traits_aggregates_or_trees_change() -> None:
    world = World()
    host = world.has("host", VCPU=4)
    world.has("child", under="host", VCPU=1)
    world.has("pool", DISK_GB=5, traits=(SHARES,), aggregates=("rack",))
    index = world.index
    index.attach_trees()
    questioner = Questioner(index)

    assert [questioner.asked_for() for _ in range(2)] == [[0, 1, 2], None]
    index.use([(host.internal, {"VCPU": 4})])
    world.has("host", VCPU=8)
    assert questioner.asked_for() is None
    world.has("child", under="host", VCPU=8, traits=("CUSTOM_A",))
    assert questioner.asked_for() == [1]
    world.has("host", VCPU=8, aggregates=("rack",))
    assert questioner.asked_for() == [0, 1]
    world.has("new", VCPU=1)
    assert questioner.asked_for() == [3]
    index.attach_trees()
    assert questioner.asked_for() == [3]
    world.loses("child")
    assert questioner.asked_for() == [0, 1]
    index.attach_trees()
    assert questioner.asked_for() == [0]
    assert questioner.asked_for() is None


def test_after_very_many_changes_an_answer_is_computed_anew() -> None:
    world = World()
    world.has("host", VCPU=1)
    world.has("other", VCPU=1)
    world.index.attach_trees()
    questioner = Questioner(world.index)
    questioner.asked_for()

    for number in range(CHANGES_MAX):
        world.has("host", VCPU=1, traits=(f"CUSTOM_T{number}",))
    assert questioner.asked_for() == [0]
    world.has("host", VCPU=1)

    assert questioner.asked_for() == [0, 1]


def test_a_copy_keeps_answers_of_its_own() -> None:
    world = World()
    host = world.has("host", VCPU=1)
    world.index.attach_trees()
    before = Questioner(world.index)
    before.asked_for()
    world.has("host", VCPU=1, traits=("CUSTOM_B",))
    before.asked_for()

    copy = world.index.copy()
    after = Questioner(copy)
    copy.put(structs.replace(host, traits=("CUSTOM_A",)))
    assert [after.asked_for(), after.asked_for()] == [[0], None]
    copy.drop(host.internal)
    assert [after.asked_for(), after.asked_for()] == [[0], None]
    assert before.asked_for() is None


def test_large_columns_and_those_of_one_tree_are_not_kept() -> None:
    world = World()
    world.has("host", VCPU=4, traits=("CUSTOM_A",))
    world.index.attach_trees()
    required = ("CUSTOM_A",)

    def is_kept(**of_the_group: object) -> bool:
        group = structs.replace(ONE_CPU, **of_the_group)
        return suitable_providers(world.index, group).own is suitable_providers(world.index, group).own

    assert is_kept()
    assert is_kept(required=(required,) * KEPT_REQUIRED_MAX)
    assert not is_kept(required=(required,) * (KEPT_REQUIRED_MAX + 1))
    assert not is_kept(preferred=(Preferred("CUSTOM_A", 1.0),))
    assert not is_kept(in_tree=provider("host"))


def test_at_most_so_many_answers_are_kept() -> None:
    index = World().index
    answers = itertools.count(1)

    def answer(_: At) -> tuple[Flags, ...]:
        return (np.full(1, next(answers)),)

    told = [
        int(index.cached(question, answer)[0][0]) for question in (*range(KEPT_MAX), 0, KEPT_MAX, 0, KEPT_MAX)
    ]

    assert told == [*range(1, KEPT_MAX + 1), 1, KEPT_MAX + 1, KEPT_MAX + 2, KEPT_MAX + 1]
