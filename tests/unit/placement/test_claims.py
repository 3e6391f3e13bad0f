"""decide_claims alone: cases that the stores' contract cannot show, or not as clearly."""

from collections.abc import Mapping

import pytest
from msgspec import structs

from bus.messages.placement import SwapClaim
from engine.inventories import (
    ConsumerId,
    InventoryState,
    ProviderId,
    ResourceAmount,
    Share,
    capacity_of,
)
from engine.refusals import (
    AlreadyClaimed,
    Claimed,
    ClaimVerdict,
    DoesNotFit,
    HostFull,
    NotAllowed,
    Released,
    ShapeMoved,
    Superseded,
)
from placement_worker.core.claims import decide_claims
from placement_worker.core.ledger import (
    BatchDecision,
    ClaimChanges,
    ClaimOrder,
    Consumer,
    Ledger,
    ProviderRow,
    Sent,
    limits_in,
    used_in,
)
from placement_worker.core.owners import NO_CELL
from tests.contracts.placement_orders import (
    CELL,
    CLEANUP,
    DB,
    HORIZON,
    HOST,
    MIGRATION,
    NOON,
    OTHER_HOST,
    WEB,
    a_claim,
    a_release,
    a_share,
    a_swap,
    amounts,
    consumer,
    provider,
)

NUMA = provider("numa-1")
FAR = consumer("far")
ROOTS = {HOST: HOST, NUMA: HOST, OTHER_HOST: OTHER_HOST}


def a_ledger(
    *living: Consumer,
    held: Mapping[ConsumerId, tuple[ResourceAmount, ...]] | None = None,
    inventory: InventoryState | None = None,
    cells: Mapping[ProviderId, str] | None = None,
) -> Ledger:
    """Two hosts, one of them with a child, each with eight VCPU or with this inventory."""
    stock = {"VCPU": inventory or InventoryState(total=8)}
    consumers = {who.int: Consumer(id=who) for who in (WEB, DB, CLEANUP, MIGRATION)}
    return Ledger(
        consumers=consumers | {consumer.id.int: consumer for consumer in living},
        held={who.int: amounts for who, amounts in (held or {}).items()},
        providers={
            which.int: ProviderRow(
                id=which,
                root=root,
                cell=(cells or {}).get(which, CELL),
                generation=5,
                shape=1 if which == root else None,
                limits=limits_in(stock),
                used=used_in(stock),
                consumers=sum(one.host == which and one.id in (held or {}) for one in living),
            )
            for which, root in ROOTS.items()
        },
    )


def decide(ledger: Ledger, *orders: ClaimOrder) -> BatchDecision[ClaimVerdict, ClaimChanges]:
    return decide_claims(ledger, [Sent(order) for order in orders], NOON, HORIZON)


def judged(ledger: Ledger, order: ClaimOrder) -> ClaimVerdict:
    (verdict,) = decide(ledger, order).verdicts
    return verdict


def living(who: ConsumerId = WEB, attempt: int = 1) -> Consumer:
    return Consumer(id=who, project="shop", cell=CELL, generation=1, attempt=attempt, host=HOST)


def test_over_commit_multiplies_the_total_minus_the_reserve() -> None:
    assert capacity_of(InventoryState(total=10, reserved=2, allocation_ratio=1.5)) == 12
    assert capacity_of(InventoryState(total=3, allocation_ratio=1.5)) == 4


@pytest.mark.parametrize(
    ("asked", "rule", "bound"),
    [(1, "min_unit", 2), (8, "max_unit", 6), (3, "step_size", 2), (6, "capacity", 0)],
)
def test_a_shortfall_names_the_rule_its_bound_and_what_is_free(asked: int, rule: str, bound: int) -> None:
    inventory = InventoryState(total=8, reserved=1, min_unit=2, max_unit=6, step_size=2, used=3)

    verdict = judged(a_ledger(inventory=inventory), a_claim(a_share(HOST, amounts(HOST, VCPU=asked))))

    assert isinstance(verdict, DoesNotFit)
    (short,) = verdict.shortfalls
    assert (short.asked, short.free, short.rule, short.bound) == (asked, 4, rule, bound)


def test_shapes_are_checked_before_amounts() -> None:
    asked = a_share(HOST, amounts(HOST, VCPU=99), shapes={HOST: 1, OTHER_HOST: 7})

    assert judged(a_ledger(), a_claim(asked)) == ShapeMoved(roots=(OTHER_HOST,))


def test_a_claim_that_names_its_trees_takes_from_no_other() -> None:
    # A provider that an operator moved out of the host's tree, and that the sender took for a part of it.
    taken = (*amounts(HOST, VCPU=1), *amounts(OTHER_HOST, VCPU=1))

    assert judged(a_ledger(), a_claim(a_share(HOST, taken, shapes={HOST: 1}))) == ShapeMoved(
        roots=(OTHER_HOST,)
    )
    assert judged(a_ledger(), a_claim(a_share(HOST, taken, shapes={HOST: 1, OTHER_HOST: 1}))) == Claimed()


def test_for_a_root_that_became_a_child_the_refusal_names_the_new_tree() -> None:
    assert judged(a_ledger(), a_claim(a_share(HOST, shapes={NUMA: 1}))) == ShapeMoved(roots=(HOST,))


def test_a_host_that_is_no_root_is_refused() -> None:
    verdict = judged(a_ledger(), a_claim(a_share(NUMA, shapes={})))

    assert isinstance(verdict, NotAllowed)
    assert verdict.field == "share.host"


def test_a_claim_must_take_something_from_its_hosts_tree() -> None:
    # Otherwise the host could be deleted while the consumer still counts on it.
    verdict = judged(a_ledger(), a_claim(a_share(HOST, amounts(OTHER_HOST, VCPU=1))))

    assert isinstance(verdict, NotAllowed)
    assert verdict.field == "share.amounts"
    assert judged(a_ledger(), a_claim(a_share(HOST, amounts(NUMA, VCPU=1)))) == Claimed()


def test_a_sender_may_change_only_its_own_cell() -> None:
    asked = [Sent(a_claim(), speaks_for="c2"), Sent(a_claim(who=DB), speaks_for=CELL)]

    refused, granted = decide_claims(a_ledger(), asked, NOON, HORIZON).verdicts

    assert isinstance(refused, NotAllowed)
    assert refused.field == "cell"
    assert "'c2'" in refused.reason
    assert granted == Claimed()


def test_an_api_level_sender_releases_consumers_of_any_cell() -> None:
    ended = structs.replace(a_release(cell=NO_CELL), project=a_claim().project)

    assert decide(a_ledger(), a_claim(), ended).verdicts == (Claimed(), Released(freed=True))
    late = decide(a_ledger(), ended, a_claim()).verdicts
    assert late == (Released(freed=False), Superseded(attempt=1, ended=True))
    (refused,) = decide_claims(a_ledger(), [Sent(ended, speaks_for=CELL)], NOON, HORIZON).verdicts
    assert isinstance(refused, NotAllowed)


def test_a_claim_repeated_for_another_cell_is_told_what_is_held() -> None:
    elsewhere = structs.replace(a_claim(a_share(OTHER_HOST)), cell="c2")

    verdicts = decide(a_ledger(cells={OTHER_HOST: "c2"}), a_claim(), elsewhere).verdicts

    assert verdicts == (
        Claimed(),
        AlreadyClaimed(attempt=1, share=Share(host=HOST, amounts=a_share().amounts)),
    )
    (_, refused) = decide_claims(
        a_ledger(cells={OTHER_HOST: "c2"}), [Sent(a_claim()), Sent(elsewhere, "c2")], NOON, HORIZON
    ).verdicts
    assert isinstance(refused, NotAllowed)


def test_providers_without_a_cell_serve_all_and_those_of_another_none() -> None:
    pool = a_share(HOST, (*amounts(HOST, VCPU=1), *amounts(OTHER_HOST, VCPU=1)))

    assert judged(a_ledger(cells={OTHER_HOST: ""}), a_claim(pool)) == Claimed()
    for cells in ({OTHER_HOST: "c2"}, {HOST: "c2"}):
        verdict = judged(a_ledger(cells=cells), a_claim(pool))
        assert isinstance(verdict, NotAllowed)
        assert verdict.field == "share.cell"


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_swap_must_lead_to_a_later_attempt(attempt: int) -> None:
    verdict = judged(a_ledger(living(attempt=2)), a_swap(a_share(OTHER_HOST), held=2, attempt=attempt))

    assert isinstance(verdict, NotAllowed)
    assert verdict.field == "attempt"


def test_a_swap_of_an_attempt_that_is_not_held_is_superseded() -> None:
    held = {WEB: amounts(HOST, VCPU=1)}
    ended = structs.replace(living(attempt=1), ended_at=NOON, host=None)
    swap = a_swap(a_share(OTHER_HOST), held=1, attempt=2)

    assert judged(a_ledger(), swap) == Superseded(attempt=0, ended=False)
    assert judged(a_ledger(ended), swap) == Superseded(attempt=1, ended=True)
    assert judged(a_ledger(living(attempt=3), held=held), swap) == Superseded(attempt=3, ended=False)


def test_a_cleanup_consumer_must_not_hold_anything_before() -> None:
    holders = living(), living(DB)
    held = {WEB: amounts(HOST, VCPU=1), DB: amounts(HOST, VCPU=1)}

    for heir in (WEB, DB):
        verdict = judged(a_ledger(*holders, held=held), a_swap(a_share(OTHER_HOST), cleanup=heir))
        assert isinstance(verdict, NotAllowed)
        assert verdict.field == "heir.id"


@pytest.mark.parametrize(
    ("swap", "field"),
    [
        (a_swap(a_share(OTHER_HOST), migration=WEB), "heir.id"),
        (a_swap(a_share(OTHER_HOST), migration=DB), "heir.id"),
        (a_swap(a_share(OTHER_HOST), migration=FAR), "heir.id"),
        (a_swap(a_share(OTHER_HOST), returns=WEB), "returns"),
        (a_swap(a_share(OTHER_HOST), returns=DB), "returns"),
        (a_swap(a_share(OTHER_HOST), returns=CLEANUP, cleanup=CLEANUP), "heir.id"),
        (a_swap(a_share(OTHER_HOST), returns=CLEANUP, migration=MIGRATION), "heir.type"),
    ],
)
def test_a_swap_that_names_a_wrong_consumer_is_refused_by_its_field(swap: SwapClaim, field: str) -> None:
    holders = living(), living(DB), structs.replace(living(FAR), cell="c2", type="MIGRATION")
    ledger = a_ledger(*holders, held={who.id: amounts(HOST, VCPU=1) for who in holders})

    decision = decide(ledger, swap)

    (verdict,) = decision.verdicts
    assert isinstance(verdict, NotAllowed)
    assert (verdict.field, bool(verdict.reason)) == (field, True)
    assert decision.changes.touched == ()


def test_a_way_back_to_a_host_without_a_place_there_is_held_to_the_limit() -> None:
    elsewhere = structs.replace(living(attempt=2), host=OTHER_HOST)
    both = (*amounts(OTHER_HOST, VCPU=1), *amounts(HOST, VCPU=1))
    ledger = a_ledger(elsewhere, living(DB), held={WEB: both, DB: amounts(HOST, VCPU=1)})

    back = a_swap(a_share(HOST, instances_max=1), held=2, attempt=3, returns=MIGRATION)

    assert judged(ledger, back) == DoesNotFit(
        shortfalls=(), full=HostFull(host=HOST, instances=1, instances_max=1)
    )


def test_a_cleanup_that_was_released_before_its_swap_keeps_nothing() -> None:
    ledger = a_ledger(living(), held={WEB: amounts(HOST, VCPU=2)}, inventory=InventoryState(total=8, used=2))

    decision = decide(ledger, a_release(CLEANUP, attempt=1), a_swap(a_share(OTHER_HOST), cleanup=CLEANUP))

    assert decision.verdicts == (Released(freed=False), Claimed())
    assert {one.provider: one.used for one in decision.changes.touched} == {
        HOST: {"VCPU": 0},
        OTHER_HOST: {"VCPU": 3},
    }
    assert CLEANUP not in dict(decision.changes.held)
