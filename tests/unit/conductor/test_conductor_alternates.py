"""An instance whose alternates are used up: its cell keeps the claim, asks for further alternates, and goes on with these."""

from datetime import timedelta

import pytest
from msgspec import structs

from bus.messages.build import AlternatesSpent, InstanceActive, InstanceFailed
from bus.messages.cell import MoreAlternates, SpawnInstance
from bus.messages.placement import ReleaseClaim, SwapClaim
from cell_conductor.core.books import entry_of
from engine.hosts import NODE
from engine.inventories import GroupId, ServerGroup
from engine.refusals import GroupRefused
from tests.unit.conductor.cell import (
    CLAIMED,
    FULL,
    NOON,
    ONE,
    REMOVE,
    Cell,
    choice,
    destroyed,
    failed,
    host,
    place,
    spawned,
)

GROUP = ServerGroup(id=GroupId(ONE), policy="anti-affinity")
TAKEN = GroupRefused(
    group=GROUP.id, policy="anti-affinity", max_per_host=1, host=host("h2"), members=(ONE,), count=1
)
MEMBER = structs.replace(place("h2"), group=GROUP, may_ask=True)


def more(spent: AlternatesSpent, *names: str, reason: str = "") -> MoreAlternates:
    alternates = tuple(choice(name) for name in names)
    sequence = spent.instance.sequence
    return MoreAlternates(
        cell="c1",
        instance=ONE,
        spent=sequence,
        sequence=sequence + 5,
        alternates=alternates,
        reason=reason,
    )


def without_alternates() -> tuple[Cell, AlternatesSpent]:
    """A member of a group whose host failed, and whose alternate another member has taken."""
    cell = Cell(MEMBER, failed(1, "h1"))
    cell.hear_due()
    (swap,) = cell.last.swaps
    (spent,) = cell.answer(swap, TAKEN)
    assert isinstance(spent, AlternatesSpent), spent
    return cell, spent


def test_a_member_whose_alternates_are_taken_asks_for_others_and_is_built_there() -> None:
    cell, spent = without_alternates()
    assert [(each.host, each.is_refused) for each in spent.instance.failures] == [("h1", False), ("h2", True)]
    assert (spent.instance.state, cell.rows[ONE].attempt) == ("building", 1), "readers know no other word"
    assert entry_of(cell.rows[ONE], "c1").instance.state == "swapping", (
        "an audit must know that a claim moves"
    )

    assert cell.hear(more(spent, "h3", "h4")) == []
    cell.hear_due()
    (swap,) = cell.last.swaps

    assert isinstance(swap, SwapClaim)
    assert (swap.held_attempt, swap.attempt, swap.share.host) == (1, 2, host("h3"))
    (spawn,) = cell.answer(swap, CLAIMED)
    assert isinstance(spawn, SpawnInstance)
    (active,) = cell.hear(spawned(2, "h3"))
    assert isinstance(active, InstanceActive)
    assert active.instance.sequence > spent.instance.sequence + 5


def test_an_answer_counts_once_and_only_for_its_question() -> None:
    cell, spent = without_alternates()
    early = structs.replace(more(spent, "h9"), spent=spent.instance.sequence - 1)
    cell.hear(early)
    assert cell.rows[ONE].alternates == ()
    cell.hear(more(spent, "h3"))
    cell.hear_due()
    (swap,) = cell.last.swaps
    (again,) = cell.answer(swap, FULL)
    assert isinstance(again, AlternatesSpent)
    assert again.instance.sequence > spent.instance.sequence

    cell.hear(more(spent, "h3"))

    assert cell.rows[ONE].alternates == ()
    cell.hear(more(again, "h4"))
    assert [each.name for each in cell.rows[ONE].alternates] == ["h4"]


def test_a_repeated_answer_does_not_ask_again() -> None:
    cell, spent = without_alternates()
    cell.hear(more(spent, "h3"))

    said = cell.hear(more(spent, "h3"))

    assert not [each for each in said if isinstance(each, AlternatesSpent)]


def test_without_further_hosts_it_ends_with_every_reason_and_releases_its_claim() -> None:
    cell, spent = without_alternates()

    said = cell.hear(more(spent, reason="no host among 3"))

    (release,) = [each for each in said if isinstance(each, ReleaseClaim)]
    assert release.attempt == 2, "placement may have granted the next attempt unknown to the cell"
    (ended,) = [each for each in said if isinstance(each, InstanceFailed)]
    assert ended.instance.reason == "no alternate is left: no host among 3"
    assert [each.host for each in ended.instance.failures] == ["h1", "h2"]


def test_a_delete_while_it_waits_wins() -> None:
    cell, spent = without_alternates()

    cell.hear(REMOVE)

    assert cell.rows[ONE].state == "deleted"
    cell.hear(more(spent, "h3"))
    assert (cell.rows[ONE].state, cell.rows[ONE].alternates) == ("deleted", ())


def test_without_an_answer_it_ends_at_its_deadline() -> None:
    cell, spent = without_alternates()
    assert cell.rows[ONE].due_at == MEMBER.ends_by

    cell.now = MEMBER.ends_by - timedelta(seconds=1)
    assert cell.hear_due() == []
    cell.now = MEMBER.ends_by
    said = cell.hear_due()

    (ended,) = [each for each in said if isinstance(each, InstanceFailed)]
    assert ended.instance.reason == "the time of the request is up"
    cell.hear(more(spent, "h3"))
    assert cell.rows[ONE].state == "error"


def test_a_silent_host_keeps_its_share_by_its_heir_while_others_are_chosen() -> None:
    cell = Cell(structs.replace(MEMBER, alternates=()))
    said = cell.after_s(60)

    (spent,) = [each for each in said if isinstance(each, AlternatesSpent)]
    cell.hear(more(spent, "h3"))
    cell.hear_due()
    (swap,) = cell.last.swaps

    assert isinstance(swap, SwapClaim)
    assert swap.heir is not None
    cell.answer(swap, CLAIMED)
    cell.hear(spawned(2, "h3"))
    said = cell.hear(destroyed(1, "h1"))
    assert [each.consumer for each in said if isinstance(each, ReleaseClaim)] == [swap.heir.id]


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_build_of_no_group_gets_as_many_tries_as_hosts_were_chosen_for_it(*, is_refused: bool) -> None:
    """An image that no host can run must not be tried on all hosts."""
    cell = Cell(structs.replace(place("h2"), may_ask=True), failed(1, "h1"))
    cell.hear_due()
    (swap,) = cell.last.swaps

    said = cell.answer(swap, FULL if is_refused else CLAIMED)
    said = said if is_refused else cell.hear(failed(2, "h2"))

    kinds = [type(each) for each in said if isinstance(each, AlternatesSpent | InstanceFailed)]
    assert kinds == [AlternatesSpent if is_refused else InstanceFailed]


@pytest.mark.parametrize(
    "order",
    [
        structs.replace(MEMBER, may_ask=False),
        structs.replace(MEMBER, alternates=(structs.replace(choice("h2"), kind=NODE),)),
    ],
    ids=["an order that does not let it ask", "nodes"],
)
def test_others_end_when_their_alternates_are_used_up(order: object) -> None:
    cell = Cell(order, failed(1, "h1"))  # type: ignore[arg-type]
    cell.hear_due()
    (swap,) = cell.last.swaps

    said = cell.answer(swap, TAKEN)

    assert [each.instance.reason for each in said if isinstance(each, InstanceFailed)] == [
        "no alternate is left"
    ]
    assert cell.now == NOON
