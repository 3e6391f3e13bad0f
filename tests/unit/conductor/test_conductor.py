"""The life of an instance in its cell, message by message."""

from datetime import timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed
from bus.messages.cell import (
    DestroyInstance,
    InstanceSpawned,
    SpawnInstance,
)
from bus.messages.placement import Heir, ReleaseClaim, SwapClaim
from cell_conductor.core.decide import Due
from cell_conductor.core.rows import SwapAnswered
from cell_conductor.settings import CONDUCTOR
from engine.inventories import (
    Choice,
    ConsumerId,
    GroupId,
    InventoryState,
    ProviderState,
    ResourceAmount,
    ShapeSeen,
    Share,
    tree_fingerprint,
)
from engine.refusals import (
    AlreadyClaimed,
    ClaimVerdict,
    GroupRefused,
    NotAllowed,
    OverLimit,
    QuotaExceeded,
    ShapeMoved,
    Superseded,
)
from tests.unit.conductor.cell import (
    CLAIMED,
    FULL,
    NOON,
    ONE,
    REMOVE,
    Cell,
    choice,
    destroy,
    destroyed,
    failed,
    host,
    kinds,
    place,
    released,
    spawned,
)


def test_a_placed_instance_is_spawned_on_the_chosen_host() -> None:
    (said,) = Cell().hear(place("h2"))

    assert isinstance(said, SpawnInstance)
    assert (said.host, said.attempt, said.share) == (host("h1"), 1, choice("h1").share)


def test_a_cell_continues_the_sequence_of_each_order_of_the_api_level() -> None:
    """So the states that a second cell publishes are later than those of the first one."""
    second = Cell(structs.replace(place(), sequence=1_000))
    (active,) = second.hear(spawned(1, "h1"))
    removed_first = Cell(REMOVE)
    second.hear(structs.replace(REMOVE, sequence=2_000))
    (deleted,) = [each for each in second.hear(destroyed(1, "h1")) if isinstance(each, InstanceDeleted)]

    assert isinstance(active, InstanceActive)
    assert 1_000 < active.instance.sequence < 2_000 < deleted.instance.sequence
    assert removed_first.row.sequence == REMOVE.sequence
    removed_first.hear(structs.replace(place(), sequence=2))
    assert removed_first.row.sequence > REMOVE.sequence


def test_a_spawned_instance_is_active_and_published_once() -> None:
    cell = Cell(place())

    (said,) = cell.hear(spawned(1, "h1"), spawned(1, "h1"))

    assert isinstance(said, InstanceActive)
    assert (said.instance.state, said.instance.host, said.instance.sequence) == ("active", "h1", 4)
    assert cell.row.due_at is None


def test_a_repeated_message_publishes_only_what_is_pending() -> None:
    cell = Cell()
    first = cell.hear(place())

    assert cell.hear(place()) == first
    cell.confirm_all()
    assert cell.hear(place(), place()) == []
    active = cell.hear(spawned(1, "h1"))
    assert cell.hear(spawned(1, "h1"), place(), failed(1, "h1")) == active


def test_an_answered_order_is_no_longer_pending() -> None:
    cell = Cell(place("h2"), spawned(1, "h1"))

    assert kinds(cell.hear(place("h2"))) == [InstanceActive]


def test_a_failure_asks_for_the_next_alternate_and_its_claim_comes_before_its_spawn() -> None:
    cell = Cell(place("h2"))

    assert cell.hear(failed(1, "h1")) == []
    assert cell.row.due_at == NOON
    assert cell.hear(Due(ONE)) == []
    swap = cell.swap_asked
    assert (swap.held_attempt, swap.attempt, swap.share, swap.heir) == (1, 2, choice("h2").share, None)
    (said,) = cell.swap(CLAIMED)
    assert isinstance(said, SpawnInstance)
    assert (said.host, said.attempt) == (host("h2"), 2)


def test_the_claim_that_is_really_held_is_adopted() -> None:
    cell = Cell(place("h2", "h3"), failed(1, "h1"))
    cell.swap(FULL)

    (said,) = cell.swap(AlreadyClaimed(attempt=2, share=choice("h2").share))

    assert isinstance(said, SpawnInstance)
    assert (said.host, said.attempt, said.share) == (host("h2"), 2, choice("h2").share)
    assert cell.row.host == choice("h2")


def test_an_alternate_over_the_quota_is_dropped_with_those_of_the_same_size() -> None:
    amounts = (ResourceAmount(provider=host("h4"), resource="VCPU", amount=1),)
    smaller = Choice(name="h4", share=Share(host=host("h4"), amounts=amounts))
    alternates = (choice("h2"), choice("h3"), smaller)
    cell = Cell(structs.replace(place(), alternates=alternates), failed(1, "h1"))
    over = OverLimit(name="VCPU", limit=4, used=4, asked=1)

    assert cell.swap(QuotaExceeded(project="shop", over=(over,))) == []

    assert cell.row.alternates == (smaller,)
    reason = "over the quota of project shop: VCPU limit 4, used 4, asked 1"
    assert (cell.row.failures[-1].host, cell.row.failures[-1].reason) == ("h2", reason)


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (FULL, f"does not fit: VCPU of {UUID(int=9)} asked 2, free 1"),
        (ShapeMoved(roots=(host("h2"),)), f"the host has changed since it was chosen: {host('h2')}"),
        (NotAllowed(field="share", reason="nonsense"), "not allowed: share: nonsense"),
        (Superseded(attempt=7, ended=False), "placement knows a later attempt, 7"),
        (
            GroupRefused(
                group=GroupId(UUID(int=5)),
                policy="anti-affinity",
                host=host("h2"),
                members=(ConsumerId(UUID(int=6)),),
                count=3,
                max_per_host=3,
            ),
            f"server group {UUID(int=5)} (anti-affinity) has members on host {host('h2')}, at most 3: {UUID(int=6)} and 2 more",
        ),
    ],
)
def test_a_refused_alternate_leads_to_the_next_and_is_among_the_reasons(
    verdict: ClaimVerdict, reason: str
) -> None:
    cell = Cell(place("h2", "h3"), failed(1, "h1"))

    assert cell.swap(verdict) == []
    (said,) = cell.swap(CLAIMED)

    assert isinstance(said, SpawnInstance)
    assert (said.host, said.attempt) == (host("h3"), 2)
    assert [(each.attempt, each.host, each.reason) for each in cell.row.failures] == [
        (1, "h1", "no image"),
        (2, "h2", reason),
    ]


def a_tree(name: str, shape: int, *, total: int = 8, traits: tuple[str, ...] = ()) -> ProviderState:
    inventories = {"VCPU": InventoryState(total=total)}
    return ProviderState(
        internal=1,
        id=host(name),
        name=name,
        root=host(name),
        shape=shape,
        inventories=inventories,
        traits=traits,
    )


def seen(name: str, shape: int = 1) -> Choice:
    """The shapes as a scheduler saw them that knew the host's tree."""
    share = structs.replace(choice(name).share, shapes=(ShapeSeen(root=host(name), shape=shape),))
    return structs.replace(choice(name), share=share, fingerprint=tree_fingerprint([a_tree(name, shape)]))


def moved(tree: ProviderState) -> ShapeMoved:
    return ShapeMoved(roots=(tree.id,), trees=(tree,))


def test_an_alternate_whose_inventory_alone_changed_is_tried_again_as_it_is_now() -> None:
    cell = Cell(structs.replace(place(), alternates=(seen("h2"),)), failed(1, "h1"))

    assert cell.swap(moved(a_tree("h2", 2, total=4))) == []
    cell.hear(Due(ONE))
    swap = cell.swap_asked
    (said,) = cell.hear(SwapAnswered(ONE, swap, CLAIMED))

    assert swap.share == seen("h2", shape=2).share
    assert (swap.held_attempt, swap.attempt) == (1, 2)
    assert isinstance(said, SpawnInstance)
    assert [each.host for each in cell.row.failures] == ["h1"]


def test_an_alternate_that_is_tried_again_still_names_the_pool_that_shares_with_it() -> None:
    plain = seen("h2")
    pool = ShapeSeen(root=host("pool"), shape=5)
    shared = structs.replace(plain, share=structs.replace(plain.share, shapes=(pool, *plain.share.shapes)))
    cell = Cell(structs.replace(place(), alternates=(shared,)), failed(1, "h1"))

    cell.swap(moved(a_tree("h2", 2, total=4)))

    assert cell.row.alternates[0].share.shapes == (ShapeSeen(root=host("h2"), shape=2), pool)


def test_a_second_way_of_an_alternate_is_tried_after_a_refusal_and_not_after_a_failed_build() -> None:
    first = choice("h2")
    child = ResourceAmount(provider=host("h2-n1"), resource="VCPU", amount=2)
    second = structs.replace(first, share=structs.replace(first.share, amounts=(child,)))
    order = structs.replace(place(), alternates=(first, second, choice("h3")))

    refused = Cell(order, failed(1, "h1"))
    refused.swap(FULL)
    (said,) = refused.swap(CLAIMED)
    built = Cell(order, failed(1, "h1"))
    built.swap(CLAIMED)

    assert isinstance(said, SpawnInstance)
    assert (said.host, said.share) == (host("h2"), second.share)
    assert refused.row.alternates == (choice("h3"),)
    assert built.row.alternates == (choice("h3"),)


def test_unchanged_alternates_come_before_a_changed_one() -> None:
    cell = Cell(structs.replace(place(), alternates=(seen("h2"), seen("h3"))), failed(1, "h1"))

    cell.swap(moved(a_tree("h2", 2, total=4)))

    assert [each.name for each in cell.row.alternates] == ["h3", "h2"]
    (said,) = cell.swap(CLAIMED)
    assert isinstance(said, SpawnInstance)
    assert said.host == host("h3")
    assert cell.row.alternates == (seen("h2", shape=2),)


@pytest.mark.parametrize(
    "verdict",
    [
        moved(a_tree("h2", 2, traits=("CUSTOM_OTHER",))),
        ShapeMoved(roots=(host("h2"),)),
        ShapeMoved(gone=(host("h2"),)),
        ShapeMoved(roots=(host("h2"), host("pool")), trees=(a_tree("h2", 2),)),
    ],
    ids=["another quality", "too large to be told", "gone", "more than its own tree"],
)
def test_an_alternate_with_other_or_unknown_changes_is_not_tried_again(verdict: ShapeMoved) -> None:
    cell = Cell(structs.replace(place(), alternates=(seen("h2"), seen("h3"))), failed(1, "h1"))

    cell.swap(verdict)

    assert [each.name for each in cell.row.alternates] == ["h3"]
    assert [each.host for each in cell.row.failures] == ["h1", "h2"]


def test_an_answer_about_the_old_shape_is_no_answer_to_the_new_swap() -> None:
    cell = Cell(structs.replace(place(), alternates=(seen("h2"),)), failed(1, "h1"))
    cell.hear(Due(ONE))
    (swap,) = cell.last.swaps
    tree = moved(a_tree("h2", 2, total=4))

    cell.hear(SwapAnswered(ONE, swap, tree), SwapAnswered(ONE, swap, tree))
    cell.hear(SwapAnswered(ONE, swap, FULL))

    assert (cell.row.state, cell.row.alternates) == ("swapping", (seen("h2", shape=2),))


def test_without_an_alternate_the_claim_is_released_and_every_reason_is_given() -> None:
    cell = Cell(place("h2"), failed(1, "h1"))
    cell.swap(CLAIMED)

    said = cell.hear(failed(2, "h2"), failed(2, "h2"))

    assert kinds(said) == [ReleaseClaim, InstanceFailed]
    assert released(said) == [(ONE, 2)]
    assert isinstance(said[1], InstanceFailed)
    assert [each.host for each in said[1].instance.failures] == ["h1", "h2"]
    assert cell.row.due_at is None


def test_when_the_last_alternate_is_refused_a_claim_that_may_be_granted_is_released() -> None:
    cell = Cell(place("h2"), failed(1, "h1"))

    said = cell.swap(FULL)

    assert kinds(said) == [ReleaseClaim, InstanceFailed]
    # A repeated question may still be granted: the next attempt ends together with this one.
    assert released(said) == [(ONE, 2)]


def test_a_claim_released_by_another_means_that_the_instance_is_deleted() -> None:
    cell = Cell(place("h2"), failed(1, "h1"))

    assert kinds(cell.swap(Superseded(attempt=5, ended=True))) == [InstanceDeleted]


def test_while_placement_does_not_answer_the_question_is_repeated_with_growing_pauses() -> None:
    cell = Cell(place("h2"), failed(1, "h1"))
    asked: list[SwapClaim] = []

    for pause_s in (1, 2, 4, 5, 5):
        assert cell.swap(None) == []
        assert cell.row.due_at == cell.now + timedelta(seconds=pause_s)
        cell.after_s(pause_s)
        asked.append(cell.swap_asked)

    assert len(asked) == 5
    assert len({(each.issued_at, each.attempt, each.share.host) for each in asked}) == 1
    assert kinds(cell.swap(CLAIMED)) == [SpawnInstance]


def test_a_question_is_not_asked_by_another_before_its_lease_is_over() -> None:
    cell = Cell(place("h2"), failed(1, "h1"), Due(ONE))

    assert cell.row.due_at == NOON + timedelta(seconds=10)
    cell.after_s(9)
    assert cell.last.swaps == ()
    cell.after_s(1)
    assert len(cell.last.swaps) == 1


def test_a_late_answer_to_a_swap_that_was_made_changes_nothing() -> None:
    cell = Cell(place("h2", "h3"), failed(1, "h1"), Due(ONE))
    (swap,) = cell.last.swaps
    cell.swap(CLAIMED)
    before = cell.row

    assert cell.hear(SwapAnswered(ONE, swap, FULL), SwapAnswered(ONE, swap, None)) == []
    assert cell.row == before


def test_a_silent_host_is_told_to_destroy_and_its_share_goes_to_a_consumer_of_its_own() -> None:
    cell = Cell(place("h2"))

    assert cell.after_s(59) == []
    assert cell.after_s(1) == [destroy(1, "h1")]
    swap = cell.swap_asked
    assert swap.heir == Heir(id=cell.heir(1), type="CLEANUP")
    assert kinds(cell.swap(CLAIMED)) == [SpawnInstance]
    assert kinds(cell.hear(spawned(2, "h2"))) == [InstanceActive]

    assert released(cell.hear(destroyed(1, "h1"))) == [(cell.heir(1), 1)]
    assert cell.row.cleanups == ()


def test_a_late_success_of_a_superseded_attempt_is_answered_by_a_destroy() -> None:
    cell = Cell(place("h2"))
    cell.after_s(60)
    cell.swap(CLAIMED)
    cell.confirm_all()
    before = cell.row

    assert cell.hear(spawned(1, "h1"), spawned(1, "h1")) == [destroy(1, "h1")]
    assert cell.hear(failed(1, "h1")) == []
    assert cell.row == before


def test_a_success_while_the_claim_is_being_swapped_comes_too_late() -> None:
    cell = Cell(place("h2"))
    cell.after_s(60)
    cell.confirm_all()

    assert cell.hear(spawned(1, "h1")) == [destroy(1, "h1")]
    assert cell.row.state == "swapping"


def test_an_instance_without_a_row_is_destroyed() -> None:
    assert Cell().hear(spawned(3, "h1")) == [destroy(3, "h1")]
    assert Cell().hear(failed(3, "h1"), destroyed(3, "h1"), Due(ONE)) == []


def test_a_host_is_reminded_of_a_destroy_until_it_confirms() -> None:
    cell = Cell(place("h2"))
    cell.after_s(60)
    cell.swap(CLAIMED)
    cell.hear(spawned(2, "h2"))
    # The first order is still on the row, confirmed or not: it is published again, once.
    assert cell.after_s(100) == [destroy(1, "h1")]
    assert [each.message for each in cell.row.outbox].count(destroy(1, "h1")) == 1
    cell.confirm_all()

    assert cell.after_s(99) == []
    assert cell.after_s(1) == [destroy(1, "h1")]
    cell.hear(destroyed(1, "h1"))
    assert cell.row.due_at is None


def test_the_deadline_of_the_request_ends_it_while_its_host_keeps_the_share() -> None:
    cell = Cell(place("h2", ends_in_s=40))

    said = cell.after_s(40)

    assert kinds(said) == [DestroyInstance, InstanceFailed]
    assert isinstance(said[1], InstanceFailed)
    assert said[1].instance.reason == "the time of the request is up"
    assert released(cell.hear(destroyed(1, "h1"))) == [(ONE, 1)]


def test_the_deadline_of_the_request_ends_an_unanswered_swap() -> None:
    cell = Cell(place("h2", ends_in_s=40), failed(1, "h1"))
    cell.swap(None)

    said = cell.after_s(40)

    assert kinds(said) == [ReleaseClaim, InstanceFailed]
    assert released(said) == [(ONE, 2)]


def test_after_a_silent_host_and_an_unanswered_swap_both_shares_are_released_when_the_host_is_clean() -> None:
    cell = Cell(place("h2", ends_in_s=70))
    cell.after_s(60)
    cell.swap(None)

    assert released(cell.after_s(10)) == []

    assert released(cell.hear(destroyed(1, "h1"))) == [(cell.heir(1), 1), (ONE, 2)]


def test_an_order_that_comes_after_its_deadline_is_not_built() -> None:
    cell = Cell()
    cell.now += timedelta(seconds=601)

    assert kinds(cell.hear(place())) == [ReleaseClaim, InstanceFailed]


def test_a_removal_before_its_placement_prevents_the_build() -> None:
    cell = Cell()

    assert cell.hear(REMOVE) == []
    said = cell.hear(place())

    assert kinds(said) == [ReleaseClaim, InstanceDeleted]
    assert released(said) == [(ONE, 1)]
    assert cell.hear(place(), REMOVE) == said


def test_a_removal_of_an_unknown_instance_releases_its_claim_and_ends() -> None:
    cell = Cell(REMOVE)

    assert cell.after_s(29) == []
    said = cell.after_s(1)
    assert kinds(said) == [ReleaseClaim, InstanceDeleted]
    assert released(said) == [(ONE, 1)]
    cell.confirm_all()

    # If it arrives after all, it is still not built, and its end was published.
    assert kinds(cell.hear(place())) == [ReleaseClaim]
    assert cell.row.state == "deleted"


@pytest.mark.parametrize("before", [(), (spawned(1, "h1"),)], ids=["building", "active"])
def test_a_removed_instance_is_destroyed_then_released_then_deleted(
    before: tuple[InstanceSpawned, ...],
) -> None:
    cell = Cell(place("h2"), *before)

    assert cell.hear(REMOVE) == [destroy(1, "h1")]
    said = cell.hear(destroyed(1, "h1"))

    assert kinds(said) == [ReleaseClaim, InstanceDeleted]
    assert released(said) == [(ONE, 1)]


def test_an_instance_removed_during_a_swap_is_deleted_at_once_if_its_host_is_clean() -> None:
    cell = Cell(place("h2"), failed(1, "h1"), Due(ONE))
    (swap,) = cell.last.swaps

    said = cell.hear(REMOVE)

    assert kinds(said) == [ReleaseClaim, InstanceDeleted]
    assert released(said) == [(ONE, 2)]
    cell.confirm_all()
    assert cell.hear(SwapAnswered(ONE, swap, CLAIMED)) == []


def test_a_host_that_does_not_confirm_a_delete_keeps_the_share_and_the_delete_ends() -> None:
    cell = Cell(place(), spawned(1, "h1"), REMOVE)

    assert cell.after_s(29) == []
    (said,) = cell.after_s(1)
    assert isinstance(said, InstanceDeleted)
    assert said.instance.reason == "h1 has not confirmed that it is gone, and keeps its share until it does"

    assert released(cell.hear(destroyed(1, "h1"))) == [(ONE, 1)]


def test_an_instance_in_error_can_be_deleted() -> None:
    cell = Cell(place(), failed(1, "h1"))

    assert kinds(cell.hear(REMOVE)) == [InstanceDeleted]


def test_a_deleted_instance_is_forgotten_when_all_is_confirmed_and_cleaned_up() -> None:
    cell = Cell(place(), REMOVE)
    cell.after_s(30)
    assert cell.row.state == "deleted"
    cell.after_s(1000)
    assert ONE in cell.rows  # its host has not confirmed
    cell.hear(destroyed(1, "h1"))
    cell.after_s(1000)
    assert ONE in cell.rows  # some of its messages are not confirmed

    cell.confirm_all()
    cell.after_s(1000)

    assert cell.rows == {}


def test_the_batch_is_decided_in_its_order() -> None:
    cell = Cell()

    said = cell.hear(place("h2"), spawned(1, "h1"), REMOVE, destroyed(1, "h1"))

    assert kinds(said) == [SpawnInstance, InstanceActive, DestroyInstance, ReleaseClaim, InstanceDeleted]
    sequences = [saying.sequence for saying in cell.last.said]
    assert sequences == [3, 4, 5, 6, 7]


def test_a_timeout_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a number, more than 0"):
        CONDUCTOR.read({"MOOR_CONDUCTOR_ATTEMPT_TIMEOUT_S": "0"})
