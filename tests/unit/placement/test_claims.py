"""decide_claims alone: cases that the stores' contract cannot show, or not as clearly."""

import itertools
from collections.abc import Mapping

import pytest
from msgspec import structs

from bus.messages.books import Done, SetQuota, UnknownClass, WriteVerdict
from bus.messages.placement import Heir
from engine.inventories import (
    INSTANCES,
    ConsumerId,
    GroupPolicy,
    InventoryState,
    PlaceRule,
    ProviderId,
    ResourceAmount,
    ServerGroup,
    Share,
)
from engine.refusals import (
    AlreadyClaimed,
    Claimed,
    ClaimVerdict,
    DoesNotFit,
    GroupRefused,
    HostFull,
    NotAllowed,
    QuotaExceeded,
    Released,
    ShapeMoved,
    Shortfall,
    Superseded,
)
from placement_worker.core.claims import decide_claims
from placement_worker.core.ledger import (
    SHARED,
    BatchDecision,
    ClaimChanges,
    ClaimOrder,
    Consumer,
    GroupBook,
    GroupRow,
    Ledger,
    ProviderRow,
    Quota,
    QuotaBook,
    Sent,
    limits_in,
    used_in,
)
from placement_worker.core.limits import decide_quotas
from tests.contracts.placement_orders import (
    CELL,
    CLEANUP,
    DB,
    GROUP,
    HORIZON,
    HOST,
    MIGRATION,
    NOON,
    OTHER_HOST,
    VOCABULARY,
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
    resource: str = "VCPU",
) -> Ledger:
    """Two hosts, one of them with a child, each with eight VCPU or with this inventory."""
    stock = {resource: inventory or InventoryState(total=8)}
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


@pytest.mark.parametrize(
    ("asked", "rule", "bound"),
    [(1, "min_unit", 2), (8, "max_unit", 6), (3, "step_size", 2), (6, "capacity", 0)],
)
def test_a_shortfall_names_the_rule_its_bound_and_what_is_free(asked: int, rule: str, bound: int) -> None:
    # Its ratio multiplies what is left after the reserve.
    inventory = InventoryState(
        total=8, reserved=1, allocation_ratio=2.0, min_unit=2, max_unit=6, step_size=2, used=10
    )

    verdict = judged(a_ledger(inventory=inventory), a_claim(a_share(HOST, amounts(HOST, VCPU=asked))))

    assert isinstance(verdict, DoesNotFit)
    (short,) = verdict.shortfalls
    assert (short.asked, short.free, short.rule, short.bound) == (asked, 4, rule, bound)


HELD = amounts(HOST, VCPU=1)
THERE = a_share(OTHER_HOST)
FAR_ONE = structs.replace(living(FAR), cell="c2", type="MIGRATION")
ALL = a_ledger(living(), living(DB), FAR_ONE, held=dict.fromkeys((WEB, DB, FAR), HELD))
ENDED = structs.replace(living(), ended_at=NOON, host=None)
OVER_COMMITTED = a_ledger(inventory=InventoryState(total=8, reserved=2, allocation_ratio=1.5))
IN_TWO = (*amounts(HOST, VCPU=1), *amounts(OTHER_HOST, VCPU=1))


@pytest.mark.parametrize(
    ("ledger", "order", "verdict"),
    [
        # Shapes are judged before amounts.
        (
            a_ledger(),
            a_claim(a_share(HOST, amounts(HOST, VCPU=99), shapes={HOST: 1, OTHER_HOST: 7})),
            ShapeMoved(roots=(OTHER_HOST,)),
        ),
        # An operator moved a provider out of the host's tree, and the sender took it for a part of it.
        (a_ledger(), a_claim(a_share(HOST, IN_TWO, shapes={HOST: 1})), ShapeMoved(roots=(OTHER_HOST,))),
        (a_ledger(), a_claim(a_share(HOST, IN_TWO, shapes={HOST: 1, OTHER_HOST: 1})), Claimed()),
        # A root became a child: the refusal names the new tree.
        (a_ledger(), a_claim(a_share(HOST, shapes={NUMA: 1})), ShapeMoved(roots=(HOST,))),
        (a_ledger(), a_claim(a_share(NUMA, shapes={})), "share.host"),
        # Otherwise the host could be deleted while the consumer still counts on it.
        (a_ledger(), a_claim(a_share(HOST, amounts(OTHER_HOST, VCPU=1))), "share.amounts"),
        (a_ledger(), a_claim(a_share(HOST, amounts(NUMA, VCPU=1))), Claimed()),
        # Providers without a cell serve all, and those of another none.
        (a_ledger(cells={OTHER_HOST: ""}), a_claim(a_share(HOST, IN_TWO)), Claimed()),
        (a_ledger(cells={OTHER_HOST: "c2"}), a_claim(a_share(HOST, IN_TWO)), "share.cell"),
        (a_ledger(cells={HOST: "c2"}), a_claim(a_share(HOST, IN_TWO)), "share.cell"),
        # Over-commit multiplies the total minus the reserve.
        (OVER_COMMITTED, a_claim(a_share(HOST, amounts(HOST, VCPU=9))), Claimed()),
        (
            OVER_COMMITTED,
            a_claim(a_share(HOST, amounts(HOST, VCPU=10))),
            DoesNotFit(shortfalls=(Shortfall(provider=HOST, resource="VCPU", asked=10, free=9),)),
        ),
        # A swap is of the attempt that is held, and leads to a later one.
        *[(a_ledger(living(attempt=2)), a_swap(THERE, held=2, attempt=each), "attempt") for each in (1, 2)],
        (a_ledger(), a_swap(THERE), Superseded(attempt=0, ended=False)),
        (a_ledger(ENDED), a_swap(THERE), Superseded(attempt=1, ended=True)),
        (
            a_ledger(living(attempt=3), held={WEB: HELD}),
            a_swap(THERE, held=1, attempt=2),
            Superseded(attempt=3, ended=False),
        ),
        # What it names beside its own consumer.
        *[(ALL, a_swap(THERE, cleanup=each), "heir.id") for each in (WEB, DB)],
        (ALL, a_swap(THERE, returns=MIGRATION, cleanup=CLEANUP), Claimed()),
        *[(ALL, a_swap(THERE, migration=each), "heir.id") for each in (WEB, DB, FAR)],
        *[(ALL, a_swap(THERE, returns=each), "returns") for each in (WEB, DB)],
        (ALL, a_swap(THERE, returns=CLEANUP, cleanup=CLEANUP), "heir.id"),
        (ALL, a_swap(THERE, returns=CLEANUP, migration=MIGRATION), "heir.type"),
        # A unit of a class that is given whole is given once.
        *[
            (
                a_ledger(inventory=InventoryState(total=2, used=1), resource=each),
                a_claim(a_share(HOST, amounts(HOST, **{each: 2}))),
                DoesNotFit(shortfalls=(Shortfall(provider=HOST, resource=each, asked=2, free=1),)),
            )
            for each in ("PCPU", "SRIOV_NET_VF")
        ],
    ],
    ids=itertools.count(),
)
def test_an_order_gets_this_verdict_or_is_refused_by_this_field(
    ledger: Ledger, order: ClaimOrder, verdict: ClaimVerdict | str
) -> None:
    decision = decide(ledger, order)

    (said,) = decision.verdicts
    assert (said.field if isinstance(said, NotAllowed) and said.reason else said) == verdict
    assert bool(decision.changes.touched) == (said == Claimed())


PAIRS, TOGETHER = (structs.replace(GROUP, max_per_host=2), structs.replace(GROUP, policy="affinity"))


def with_group(
    group: ServerGroup,
    *members: ConsumerId,
    of: str = "shop",
    elsewhere: Mapping[ConsumerId, ProviderId] = {},
) -> Ledger:
    """The first host has an instance of the group, and these, too; the second has nobody."""
    there = (DB, *members)
    rows = [structs.replace(living(who), group=group.id) for who in there]
    book = GroupBook(GroupRow(group, of), (*((who, HOST) for who in there), *elsewhere.items()))
    return structs.replace(a_ledger(*rows, held=dict.fromkeys(there, HELD)), groups={group.id: book})


def with_quota(**used: int) -> Ledger:
    quota = Quota("shop", limits={"VCPU": 4, INSTANCES: 2}, used=used)
    return structs.replace(a_ledger(living(), held={WEB: amounts(HOST, VCPU=2)}), quotas={"shop": quota})


LEAVES_WITH_OTHERS = structs.replace(a_swap(THERE, group=TOGETHER), leaves=(HOST,))


def of_vcpus(amount: int, who: ConsumerId = MIGRATION) -> ClaimOrder:
    return a_claim(a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=amount)), who)


@pytest.mark.parametrize(
    ("ledger", "order", "said"),
    [
        # A group's members are kept apart or together, by claims and by swaps, but for those that leave.
        (with_group(GROUP), a_claim(group=GROUP), GroupRefused),
        (with_group(GROUP), a_claim(THERE, group=GROUP), Claimed),
        (with_group(PAIRS), a_claim(group=PAIRS), Claimed),
        (with_group(PAIRS, MIGRATION), a_claim(group=PAIRS), GroupRefused),
        (with_group(TOGETHER), a_claim(group=TOGETHER), Claimed),
        (with_group(TOGETHER), a_claim(THERE, group=TOGETHER), GroupRefused),
        (with_group(TOGETHER, WEB), a_swap(THERE, group=TOGETHER), GroupRefused),
        (with_group(GROUP, WEB), a_swap(THERE, group=GROUP), Claimed),
        # The API level has claimed a member for the project that a group is of; cells bring no other into it.
        (with_group(PAIRS, of="bank"), a_claim(group=PAIRS), NotAllowed),
        (with_group(PAIRS, of=""), a_claim(group=PAIRS), Claimed),
        # A project has what its quota allows; a larger instance is judged by what it has more.
        (with_quota(VCPU=2, instances=1), of_vcpus(2), Claimed),
        (with_quota(VCPU=2, instances=1), of_vcpus(3), QuotaExceeded),
        (with_quota(VCPU=2, instances=2), of_vcpus(1), QuotaExceeded),
        (with_quota(VCPU=2, instances=2), a_swap(a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=4))), Claimed),
        (
            with_quota(VCPU=2, instances=2),
            a_swap(a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=5))),
            QuotaExceeded,
        ),
        # A limit that was lowered refuses growth alone, and one of another project nothing.
        (with_quota(VCPU=6, instances=1), of_vcpus(1), QuotaExceeded),
        (with_quota(VCPU=6, instances=1), a_swap(a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=2))), Claimed),
        (with_quota(VCPU=6, instances=1), structs.replace(of_vcpus(1), project="bank"), Claimed),
        # All of an affinity group may leave a host together, but not for another one than its members elsewhere have.
        (with_group(TOGETHER, WEB), LEAVES_WITH_OTHERS, Claimed),
        (with_group(TOGETHER, WEB, elsewhere={FAR: provider("host-3")}), LEAVES_WITH_OTHERS, GroupRefused),
    ],
    ids=itertools.count(),
)
def test_groups_and_quotas_allow_this_or_refuse_it(ledger: Ledger, order: ClaimOrder, said: type) -> None:
    decision = decide_claims(ledger, [Sent(order, CELL)], NOON, HORIZON)

    assert [type(each) for each in decision.verdicts] == [said], decision.verdicts


NEAR = provider("host-3")
RACKS = {HOST: "dc1/hall1/rack1", OTHER_HOST: "dc1/hall1/rack2", NEAR: "dc1/hall1/rack1"}


def ruled(policy: GroupPolicy, level: int, most: int = 1) -> ServerGroup:
    rule = PlaceRule(level=level, policy=policy, max_members=most)
    return structs.replace(GROUP, policy="soft-affinity", rules=(rule,))


def in_racks(
    group: ServerGroup, *members: ConsumerId, places: Mapping[ProviderId, str] = RACKS, near: bool = False
) -> Ledger:
    """The first host has an instance of the group, and these, too; with `near` another host of its rack has one."""
    known = with_group(group, *members, elsewhere={FAR: NEAR} if near else {})
    return structs.replace(known, places=places)


APART, TWO, ROW = ruled("anti-affinity", 3), ruled("anti-affinity", 3, 2), ruled("affinity", 2)
UNRULED = structs.replace(APART, rules=())
ONE_RACK = {**RACKS, OTHER_HOST: RACKS[HOST]}
NOWHERE = {**RACKS, OTHER_HOST: "dc1"}
WITH_OTHERS = structs.replace(a_swap(THERE, group=ruled("affinity", 3)), leaves=(HOST,))


@pytest.mark.parametrize(
    ("ledger", "order", "domain"),
    [
        (in_racks(APART), a_claim(group=APART), "dc1/hall1/rack1"),
        (in_racks(APART), a_claim(THERE, group=APART), None),
        (in_racks(TWO), a_claim(group=TWO), None),
        # A member on another host of the rack counts.
        (in_racks(TWO, near=True), a_claim(group=TWO), "dc1/hall1/rack1"),
        (in_racks(TWO, near=True), a_claim(THERE, group=TWO), None),
        # One that moves does not count against itself, and its cleanup takes its place among the others.
        (in_racks(TWO, WEB, places=ONE_RACK), a_swap(THERE, group=TWO), None),
        (in_racks(TWO, WEB, places=ONE_RACK), a_swap(THERE, cleanup=CLEANUP, group=TWO), None),
        (in_racks(TWO, WEB, places=ONE_RACK, near=True), a_swap(THERE, group=TWO), "dc1/hall1/rack1"),
        # All in one row: also a member that moves.
        (in_racks(ROW), a_claim(THERE, group=ROW), None),
        (in_racks(ruled("affinity", 3)), a_claim(THERE, group=ruled("affinity", 3)), "dc1/hall1/rack1"),
        (in_racks(ruled("affinity", 3), WEB), a_swap(THERE, group=ruled("affinity", 3)), "dc1/hall1/rack1"),
        (in_racks(ruled("affinity", 3), WEB), WITH_OTHERS, None),
        (in_racks(ruled("affinity", 3), WEB, near=True), WITH_OTHERS, "dc1/hall1/rack1"),
        # A host without a domain of the level takes nobody.
        (in_racks(APART, places=NOWHERE), a_claim(THERE, group=APART), ""),
        (in_racks(ROW, places=NOWHERE), a_claim(THERE, group=ROW), ""),
        (in_racks(ruled("soft-anti-affinity", 3)), a_claim(group=ruled("soft-anti-affinity", 3)), None),
        # A claim of release 0.1.0 names no rules, and is judged by those that are known.
        (in_racks(APART), a_claim(group=UNRULED), "dc1/hall1/rack1"),
    ],
    ids=itertools.count(),
)
def test_rules_for_domains_allow_this_or_refuse_it(
    ledger: Ledger, order: ClaimOrder, domain: str | None
) -> None:
    verdict = decide_claims(ledger, [Sent(order)], NOON, HORIZON).verdicts[0]

    assert (verdict.domain if isinstance(verdict, GroupRefused) else None) == domain, verdict
    assert isinstance(verdict, Claimed | GroupRefused)
    if domain is not None:
        assert isinstance(verdict, GroupRefused)
        assert (verdict.rule is not None, bool(verdict.members)) == (True, bool(domain))


def test_the_members_of_one_batch_count_and_rules_are_told_once() -> None:
    empty = structs.replace(a_ledger(), places=RACKS)
    told = [a_claim(group=UNRULED), a_claim(who=DB, group=APART), a_claim(THERE, who=MIGRATION, group=APART)]

    decision = decide_claims(empty, [Sent(each) for each in told], NOON, HORIZON)

    assert [type(each) for each in decision.verdicts] == [Claimed, GroupRefused, Claimed]
    assert [each.definition for each in decision.changes.groups] == [APART]
    other = decide_claims(in_racks(APART), [Sent(a_claim(THERE, group=TWO))], NOON, HORIZON)
    assert [each.field for each in other.verdicts if isinstance(each, NotAllowed)] == ["group.rules"]


def on(host: ProviderId, vcpus: int) -> Share:
    return a_share(host, amounts(host, VCPU=vcpus))


SOFT = structs.replace(GROUP, policy="soft-affinity")


@pytest.mark.parametrize(
    ("known", "group", "by_cell", "said"),
    [
        (None, GROUP, False, (GroupRow(GROUP, "shop"),)),
        (None, GROUP, True, (GroupRow(GROUP, None),)),
        # What a cell has said of it holds until the API level says more.
        (GroupRow(PAIRS, None), GROUP, False, (GroupRow(GROUP, "shop"),)),
        (GroupRow(PAIRS, None), GROUP, True, "group.max_per_host"),
        (GroupRow(GROUP, None), GROUP, True, ()),
        (GroupRow(GROUP, "shop"), GROUP, False, ()),
        (GroupRow(PAIRS, "shop"), GROUP, False, "group.max_per_host"),
        (GroupRow(SOFT, "shop"), GROUP, False, "group.policy"),
        # The API level has a group for all projects as soon as it claims for a second one; no cell brings another into it.
        (GroupRow(GROUP, "bank"), GROUP, False, (GroupRow(GROUP, SHARED),)),
        (GroupRow(GROUP, "bank"), GROUP, True, "group.id"),
        (GroupRow(GROUP, SHARED), GROUP, False, ()),
        (GroupRow(GROUP, SHARED), GROUP, True, ()),
    ],
    ids=itertools.count(),
)
def test_whose_a_group_is_and_who_says_so(
    known: GroupRow | None, group: ServerGroup, *, by_cell: bool, said: tuple[GroupRow, ...] | str
) -> None:
    groups = {} if known is None else {group.id: GroupBook(known, ())}
    order = Sent(a_claim(group=group), CELL) if by_cell else Sent(a_claim(group=group))

    decision = decide_claims(structs.replace(a_ledger(), groups=groups), [order], NOON, HORIZON)

    (verdict,) = decision.verdicts
    assert (verdict.field if isinstance(verdict, NotAllowed) else decision.changes.groups) == said
    assert len(decision.changes.joined) == isinstance(said, tuple)


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        ([a_claim(group=GROUP), a_claim(who=DB, group=GROUP)], [Claimed, GroupRefused]),
        ([a_claim(group=GROUP), a_release(), a_claim(who=DB, group=GROUP)], [Claimed, Released, Claimed]),
        (
            [a_claim(group=GROUP), a_swap(THERE, group=GROUP), a_claim(who=DB, group=GROUP)],
            [Claimed, Claimed, Claimed],
        ),
        (
            [a_claim(group=GROUP), a_swap(THERE, group=GROUP), a_claim(THERE, who=DB, group=GROUP)],
            [Claimed, Claimed, GroupRefused],
        ),
        # It may come back, or be there still.
        *[
            ([a_claim(group=GROUP), leaving, a_claim(who=DB, group=GROUP)], [Claimed, Claimed, GroupRefused])
            for leaving in (
                a_swap(THERE, group=GROUP, migration=MIGRATION),
                a_swap(THERE, group=GROUP, cleanup=CLEANUP),
            )
        ],
        ([a_claim(), a_claim(who=DB, group=GROUP)], [Claimed, Claimed]),
    ],
    ids=itertools.count(),
)
def test_a_batch_knows_the_members_that_its_own_orders_have_brought_and_taken(
    orders: list[ClaimOrder], said: list[type]
) -> None:
    groups = {GROUP.id: GroupBook(GroupRow(GROUP, "shop"), ())}

    decision = decide(structs.replace(a_ledger(), groups=groups), *orders)

    assert [type(each) for each in decision.verdicts] == said


@pytest.mark.parametrize(
    ("limits", "verdict", "after"),
    [
        ({"VCPU": 8}, Done(), {"MEMORY_MB": 1, "VCPU": 8}),
        ({"VCPU": None, INSTANCES: 3}, Done(), {"MEMORY_MB": 1, INSTANCES: 3}),
        ({"CUSTOM_NOPE": 1, "VCPU": 8}, UnknownClass(names=("CUSTOM_NOPE",)), {"MEMORY_MB": 1, "VCPU": 4}),
        # Its class was deleted meanwhile.
        ({"CUSTOM_GONE": None}, Done(), {"MEMORY_MB": 1, "VCPU": 4}),
    ],
)
def test_an_order_changes_the_limits_that_it_names_and_none_of_them_if_a_class_is_unknown(
    limits: dict[str, int | None], verdict: WriteVerdict, after: dict[str, int]
) -> None:
    book = QuotaBook(quotas={"shop": Quota("shop", limits={"VCPU": 4})})
    first = SetQuota(project="shop", limits={"MEMORY_MB": 1})

    decision = decide_quotas(book, [first, SetQuota(project="shop", limits=limits)], VOCABULARY)

    assert decision.verdicts == (Done(), verdict)
    assert [dict(each.limits) for each in decision.changes] == [after]


SMALLER, SAME = (a_swap(on(OTHER_HOST, vcpus), migration=MIGRATION) for vcpus in (1, 2))
BACK = a_swap(on(HOST, 2), held=2, attempt=3, returns=MIGRATION)
BACK_FROM_SILENCE = structs.replace(BACK, heir=Heir(id=CLEANUP, type="CLEANUP"))


@pytest.mark.parametrize(
    ("orders", "said", "held", "counted", "generation"),
    [
        # What an instance gave up counts until it cannot come back: others do not get it, and a way back is judged by no quota.
        ([SMALLER], [Claimed], {WEB: (OTHER_HOST, 1), MIGRATION: (HOST, 2)}, (2, 1), 5),
        ([SMALLER, of_vcpus(1, DB)], [Claimed, QuotaExceeded], {}, (2, 1), 5),
        ([SMALLER, BACK], [Claimed] * 2, {WEB: (HOST, 2), MIGRATION: None}, (2, 1), 6),
        ([SMALLER, a_release(MIGRATION)], [Claimed, Released], {MIGRATION: None}, (1, 1), 5),
        (
            [SMALLER, a_release(MIGRATION), of_vcpus(1, DB)],
            [Claimed, Released, Claimed],
            {DB: (OTHER_HOST, 1)},
            (2, 2),
            5,
        ),
        ([SAME], [Claimed], {WEB: (OTHER_HOST, 2), MIGRATION: (HOST, 2)}, (2, 1), 5),
        ([SAME, a_release(MIGRATION)], [Claimed, Released], {MIGRATION: None}, (2, 1), 5),
        # A silent host keeps all, and its project is not charged for it.
        (
            [a_swap(on(OTHER_HOST, 2), cleanup=CLEANUP)],
            [Claimed],
            {WEB: (OTHER_HOST, 2), CLEANUP: (HOST, 2)},
            (2, 1),
            5,
        ),
        # On one host the migration holds what the instance needs to come back.
        (
            [a_swap(on(HOST, 1), migration=MIGRATION)],
            [Claimed],
            {WEB: (HOST, 1), MIGRATION: (HOST, 1)},
            (2, 1),
            5,
        ),
        ([a_swap(on(HOST, 2), migration=MIGRATION)], [Claimed], {WEB: (HOST, 2)}, (2, 1), 5),
        # On the way back a silent destination keeps what it has, but for what the instance needs there.
        (
            [SAME, BACK_FROM_SILENCE],
            [Claimed] * 2,
            {WEB: (HOST, 2), CLEANUP: (OTHER_HOST, 2), MIGRATION: None},
            (2, 1),
            6,
        ),
        (
            [a_swap(on(HOST, 1), migration=MIGRATION), BACK_FROM_SILENCE],
            [Claimed] * 2,
            {WEB: (HOST, 2), CLEANUP: None, MIGRATION: None},
            (2, 1),
            6,
        ),
        # Who comes again is told what is held; a generation is never lower than the attempt.
        ([SMALLER, SMALLER], [Claimed, AlreadyClaimed], {}, (2, 1), 5),
        ([a_swap(on(OTHER_HOST, 2), attempt=8)], [Claimed], {WEB: (OTHER_HOST, 2)}, (2, 1), 8),
        ([a_release(WEB)], [Released], {WEB: None}, (0, 0), 4),
    ],
    ids=itertools.count(),
)
def test_a_move_counts_once_and_its_way_back_is_judged_by_no_quota(
    orders: list[ClaimOrder],
    said: list[type],
    held: Mapping[ConsumerId, tuple[ProviderId, int] | None],
    counted: tuple[int, int],
    generation: int,
) -> None:
    """An instance with two VCPU, of a project that may have no more."""
    quota = Quota("shop", limits={"VCPU": 2}, used={"VCPU": 2, INSTANCES: 1})
    row = structs.replace(living(), generation=4)
    full = structs.replace(a_ledger(row, held={WEB: amounts(HOST, VCPU=2)}), quotas={"shop": quota})
    providers = dict(full.providers)
    providers[HOST.int] = structs.replace(providers[HOST.int], used={"VCPU": 2})
    ledger = structs.replace(full, providers=providers)

    decision = decide(ledger, *orders)

    assert [type(each) for each in decision.verdicts] == said
    now = {who: {(each.provider, each.amount) for each in has} for who, has in decision.changes.held}
    assert {who: now.get(who, set()) for who in held} == {
        who: {where} if where else set() for who, where in held.items()
    }
    (used,) = [each.used for each in decision.changes.quotas or (quota,)]
    assert (used.get("VCPU", 0), used.get(INSTANCES, 0)) == counted
    (web,) = [each for each in decision.changes.consumers if each.id == WEB]
    assert web.generation == generation
    everything = [one for has in ({WEB: {(HOST, 2)}} | now).values() for one in has]
    for touched in decision.changes.touched:
        there = sum(amount for which, amount in everything if which == touched.provider)
        assert touched.used.get("VCPU", 0) == there


def test_a_sender_may_change_only_its_own_cell() -> None:
    asked = [Sent(a_claim(), speaks_for="c2"), Sent(a_claim(who=DB), speaks_for=CELL)]

    refused, granted = decide_claims(a_ledger(), asked, NOON, HORIZON).verdicts

    assert isinstance(refused, NotAllowed)
    assert refused.field == "cell"
    assert "'c2'" in refused.reason
    assert granted == Claimed()


def test_an_api_level_sender_releases_consumers_of_any_cell() -> None:
    ended = structs.replace(a_release(cell="cell0"), project=a_claim().project)

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


def test_a_way_back_to_a_host_without_a_place_there_is_held_to_the_limit() -> None:
    elsewhere = structs.replace(living(attempt=2), host=OTHER_HOST)
    both = (*amounts(OTHER_HOST, VCPU=1), *amounts(HOST, VCPU=1))
    ledger = a_ledger(elsewhere, living(DB), held={WEB: both, DB: amounts(HOST, VCPU=1)})

    back = a_swap(a_share(HOST, instances_max=1), held=2, attempt=3, returns=MIGRATION)

    assert judged(ledger, back) == DoesNotFit(
        shortfalls=(), full=HostFull(host=HOST, instances=1, instances_max=1)
    )


@pytest.mark.parametrize("group", [None, GROUP])
@pytest.mark.parametrize(
    ("kept", "generation"),
    [
        ({HOST: 2}, 5),
        # A reshape has moved it within the tree meanwhile.
        ({NUMA: 2}, 6),
        ({HOST: 1, NUMA: 1}, 6),
        ({NUMA: 3}, 6),
        # It may have taken some of it away.
        ({NUMA: 1}, None),
        ({OTHER_HOST: 2}, None),
    ],
)
def test_a_way_back_to_a_full_host_gets_what_its_migration_has_kept(
    kept: dict[ProviderId, int], generation: int | None, group: ServerGroup | None
) -> None:
    id_ = None if group is None else group.id
    web = structs.replace(living(attempt=2), generation=4, host=OTHER_HOST, group=id_)
    migration = structs.replace(living(MIGRATION), type="MIGRATION", group=id_)
    holds = tuple(each for which, amount in kept.items() for each in amounts(which, VCPU=amount))
    full = InventoryState(total=2, used=2)
    ledger = a_ledger(
        *(web, migration), held={WEB: amounts(OTHER_HOST, VCPU=2), MIGRATION: holds}, inventory=full
    )
    if group is not None:
        book = GroupBook(GroupRow(group, "shop"), ((WEB, OTHER_HOST), (MIGRATION, HOST)))
        ledger = structs.replace(ledger, groups={group.id: book})

    decision = decide(ledger, a_swap(on(HOST, 2), held=2, attempt=3, returns=MIGRATION, group=group))

    if generation is None:
        assert isinstance(decision.verdicts[0], DoesNotFit)
        return
    assert decision.verdicts == (Claimed(),)
    (row,) = [each for each in decision.changes.consumers if each.id == WEB]
    assert (row.generation, row.attempt, row.host, row.group) == (generation, 3, HOST, id_)
    has = dict(decision.changes.held)
    assert sum(each.amount for each in has[WEB]) == 2
    assert {each.provider for each in has[WEB]} == {*kept}
    assert has[MIGRATION] == ()


def test_a_cleanup_that_was_released_before_its_swap_keeps_nothing() -> None:
    ledger = a_ledger(living(), held={WEB: amounts(HOST, VCPU=2)}, inventory=InventoryState(total=8, used=2))

    decision = decide(ledger, a_release(CLEANUP, attempt=1), a_swap(a_share(OTHER_HOST), cleanup=CLEANUP))

    assert decision.verdicts == (Released(freed=False), Claimed())
    assert {one.provider: one.used for one in decision.changes.touched} == {
        HOST: {"VCPU": 0},
        OTHER_HOST: {"VCPU": 3},
    }
    assert CLEANUP not in dict(decision.changes.held)


RESERVED = InventoryState(total=1, reserved=1)


def test_what_is_reserved_is_for_the_claim_that_may_take_it_and_only_once() -> None:
    ledger = a_ledger(inventory=RESERVED)
    share = a_share(asked=amounts(HOST, VCPU=1))
    usual = a_claim(share)
    ours = structs.replace(usual, takes_reserved=True)
    theirs = a_claim(share, DB)

    assert isinstance(judged(ledger, usual), DoesNotFit)
    first, repeated, other, both = decide(
        ledger, ours, ours, theirs, structs.replace(theirs, takes_reserved=True)
    ).verdicts
    assert isinstance(first, Claimed)
    assert isinstance(repeated, AlreadyClaimed)
    assert isinstance(other, DoesNotFit)
    assert isinstance(both, DoesNotFit)


def test_a_cell_takes_nothing_that_is_reserved() -> None:
    claim = structs.replace(a_claim(a_share(asked=amounts(HOST, VCPU=1))), takes_reserved=True)

    (refused,) = decide_claims(
        a_ledger(inventory=RESERVED), [Sent(claim, speaks_for=CELL)], NOON, HORIZON
    ).verdicts

    assert isinstance(refused, DoesNotFit)
