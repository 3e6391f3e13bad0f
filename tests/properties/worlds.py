"""Small worlds full of conflicts: few providers, little capacity, few consumers, few attempts."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from hypothesis import strategies as st
from msgspec import structs

from bus.messages.placement import ClaimResources, Heir, ReleaseClaim, ReportInventory, SwapClaim
from engine.inventories import ConsumerId, ProviderId, ReportedInventory, ResourceAmount, ShapeSeen, Share
from placement_worker.core.ledger import ClaimOrder, Sent
from tests.contracts.placement_orders import (
    CLEANUP,
    DB,
    LONG_AGO,
    MIGRATION,
    NOON,
    WEB,
    a_provider,
    a_report,
    amounts,
    provider,
)
from tests.narrowing import must_be

HOST, NUMA, OTHER, POOL, FAR = (provider(name) for name in ("host", "numa", "other", "pool", "far"))
HEIRS = (Heir(id=CLEANUP, type="CLEANUP"), Heir(id=MIGRATION, type="MIGRATION"))
WRONG_HEIRS = (Heir(id=WEB, type="CLEANUP"), Heir(id=DB, type="MIGRATION"))
NOWHERE = provider("nowhere")
PARENTS = {HOST: None, NUMA: HOST, OTHER: None, POOL: None, FAR: None}
CELLS = {HOST: "c1", NUMA: "c1", OTHER: "c1", POOL: "c1", FAR: "c2"}
NAMES = {HOST: "host", NUMA: "numa", OTHER: "other", POOL: "pool", FAR: "far"}
CONSUMERS = (WEB, DB, CLEANUP, MIGRATION)

T = TypeVar("T")
Shelves = dict[ProviderId, dict[str, ReportedInventory]]


class Restock(NamedTuple):
    """An inventory changes between claims, perhaps to less than is in use."""

    provider: ProviderId
    resource: str
    inventory: ReportedInventory


class World(NamedTuple):
    """`batches` is one sequence of orders, cut anywhere; a restock is a batch of its own."""

    shelves: Shelves
    batches: list[list[Sent[ClaimOrder]] | Restock]


def mostly(usual: Sequence[T], rare: Sequence[T]) -> st.SearchStrategy[T]:
    """A rare value in about one draw of seven."""
    return st.sampled_from([*(list(usual) * (6 * len(rare) // len(usual) + 1)), *rare])


def share(
    host: ProviderId, *asked: tuple[ResourceAmount, ...], shapes: tuple[tuple[ProviderId, int], ...] = ()
) -> Share:
    return Share(
        host=host,
        amounts=sum(asked, ()),
        shapes=tuple(ShapeSeen(root=root, shape=shape) for root, shape in shapes),
    )


USUAL_SHARES = (
    share(HOST, amounts(HOST, VCPU=1)),
    share(HOST, amounts(HOST, VCPU=2)),
    share(HOST, amounts(HOST, VCPU=1), amounts(NUMA, VCPU=2)),
    share(HOST, amounts(HOST, VCPU=1), amounts(POOL, VCPU=1), amounts(HOST, VCPU=1)),
    share(OTHER, amounts(OTHER, VCPU=1)),
    share(OTHER, amounts(OTHER, VCPU=2)),
    share(OTHER, amounts(OTHER, VCPU=1), amounts(POOL, VCPU=2)),
    share(OTHER, amounts(OTHER, VCPU=2), shapes=((OTHER, 1), (POOL, 1))),
)
RARE_SHARES = (
    share(HOST, amounts(HOST, VCPU=4), amounts(POOL, VCPU=3)),
    share(HOST, amounts(HOST, VCPU=1, MEMORY_MB=1)),
    share(HOST, amounts(HOST, MEMORY_MB=1)),
    share(HOST, amounts(HOST, MEMORY_MB=1), amounts(OTHER, VCPU=1)),
    share(OTHER, amounts(OTHER, MEMORY_MB=2)),
    share(HOST, amounts(HOST, VCPU=1), shapes=((HOST, 2), (OTHER, 2))),
    share(HOST, amounts(HOST, VCPU=1), shapes=((NUMA, 1), (NOWHERE, 1))),
    share(HOST, amounts(HOST, VCPU=1), amounts(NOWHERE, VCPU=1)),
    share(OTHER, amounts(OTHER, VCPU=1), amounts(FAR, VCPU=1)),
    share(OTHER, amounts(OTHER, VCPU=1), shapes=((FAR, 1),)),
    share(NUMA, amounts(NUMA, VCPU=1)),
    share(HOST, amounts(NUMA, VCPU=1)),
    share(HOST, amounts(POOL, VCPU=1)),
    share(NOWHERE, amounts(HOST, VCPU=1)),
    share(FAR, amounts(FAR, VCPU=1)),
)
inventory = mostly(
    [ReportedInventory(total=total) for total in (2, 3, 4)],
    [
        ReportedInventory(total=1),
        ReportedInventory(total=4, reserved=2, allocation_ratio=1.5),
        ReportedInventory(total=3, allocation_ratio=1.5),
        ReportedInventory(total=4, min_unit=2),
        ReportedInventory(total=4, max_unit=1),
        ReportedInventory(total=5, step_size=2),
    ],
)
shelf = st.fixed_dictionaries({"VCPU": inventory}, optional={"MEMORY_MB": inventory})
shelves = st.fixed_dictionaries(dict.fromkeys(PARENTS, shelf))
restocks = st.builds(
    Restock, provider=st.sampled_from(tuple(PARENTS)), resource=st.just("VCPU"), inventory=inventory
)

shares = mostly(USUAL_SHARES, RARE_SHARES)
cells = mostly(["c1"], ["c2"])
issued_at = mostly([NOON], [LONG_AGO])
any_attempt = st.integers(1, 3)


def claims(who: ConsumerId, attempts: st.SearchStrategy[int]) -> st.SearchStrategy[ClaimOrder]:
    return st.builds(
        ClaimResources,
        cell=cells,
        consumer=st.just(who),
        attempt=attempts,
        issued_at=issued_at,
        share=shares,
    )


def swaps(
    who: ConsumerId, held: st.SearchStrategy[int], attempts: st.SearchStrategy[int]
) -> st.SearchStrategy[ClaimOrder]:
    return st.builds(
        SwapClaim,
        cell=cells,
        consumer=st.just(who),
        held_attempt=held,
        attempt=attempts,
        issued_at=issued_at,
        share=shares,
        heir=mostly([None, *HEIRS], WRONG_HEIRS),
        returns=mostly([None], [WEB, DB, MIGRATION]),
    )


@st.composite
def moves(draw: st.DrawFn, who: ConsumerId) -> tuple[ClaimOrder, ...]:
    """A claim, a move from it to another share, and the way back, some of them with a cleanup."""
    order = must_be(ClaimResources, draw(claims(who, st.just(1))))
    there = must_be(SwapClaim, draw(swaps(who, st.just(1), st.just(2))))
    back = SwapClaim(
        cell="c1",
        consumer=who,
        held_attempt=2,
        attempt=3,
        issued_at=NOON,
        share=order.share,
        heir=draw(st.sampled_from((None, None, HEIRS[0]))),
        returns=MIGRATION,
    )
    return order, structs.replace(there, heir=HEIRS[1], returns=None), back


def releases(who: ConsumerId) -> st.SearchStrategy[ClaimOrder]:
    return st.builds(
        ReleaseClaim, cell=cells, consumer=st.just(who), attempt=any_attempt, issued_at=issued_at
    )


def lives_of(who: ConsumerId) -> st.SearchStrategy[tuple[ClaimOrder, ...]]:
    """Orders for one consumer: those that begin a life, those that continue it, and the rest."""
    one, two, three = st.just(1), st.just(2), st.just(3)
    return st.tuples(
        claims(who, one),
        swaps(who, one, two),
        swaps(who, two, three),
        claims(who, any_attempt),
        swaps(who, any_attempt, any_attempt),
        releases(who),
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    web, db, moved = draw(lives_of(WEB)), draw(lives_of(DB)), draw(moves(draw(st.sampled_from((WEB, DB)))))
    # Orders that begin a life are more frequent than those that end one, or few consumers would be alive.
    orders = (
        *web[:3] * 3,
        *db[:3] * 3,
        *web,
        *db,
        *moved * 3,
        draw(releases(MIGRATION)),
        draw(releases(CLEANUP)),
        draw(claims(CLEANUP, any_attempt)),
    )
    # Drawn from these few, equal orders come repeatedly, late and in any order.
    asked = st.builds(
        Sent[ClaimOrder], order=st.sampled_from(orders), speaks_for=mostly([None, "c1"], ["c2"])
    )
    begun = draw(st.sampled_from(([web[0], db[0]], [*moved[:2]])))
    batches: list[list[Sent[ClaimOrder]] | Restock] = [[Sent(one) for one in begun]]
    for one in draw(st.lists(asked | asked | asked | asked | restocks, min_size=8, max_size=24)):
        if isinstance(one, Restock):
            batches.append(one)
        elif isinstance(batches[-1], list) and draw(st.booleans()):
            batches[-1].append(one)
        else:
            batches.append([one])
    return World(draw(shelves), batches)


def report_of(which: ProviderId, holds: dict[str, ReportedInventory]) -> ReportInventory:
    return a_report(
        a_provider(NAMES[which], PARENTS[which], holds),
        root=PARENTS[which] or which,
        cell=CELLS[which],
    )
