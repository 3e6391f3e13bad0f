"""Small forests with few resources and much sharing, and queries that reach nearly all code of the search."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TypeVar
from uuid import UUID

from hypothesis import strategies as st

from engine.candidates.provider_index import ProviderIndex
from engine.candidates.query import CandidatesQuery, Group
from engine.inventories import AggregateId, InventoryState, ProviderId, ProviderState

SHARES = "MISC_SHARES_VIA_AGGREGATE"
TRAITS = ("CUSTOM_GOLD", "CUSTOM_IRON", "HW_CPU_X86_AVX")
AGGREGATES = tuple(AggregateId(UUID(int=0xA000 + number)) for number in range(3))
UNKNOWN_AGGREGATE = AggregateId(UUID(int=0xAFFF))
PROVIDERS_MAX = 9
# The parent of each place.
LAYOUTS = (
    (-1,),
    (-1,),
    (-1, 0),
    (-1, 0, 0),
    (-1, 0, 0, 1, 2),
    (-1, 0, 0, 1),
    (-1, 0, 1, 2),
    (-1, 0, 0, 0, 0),
)
SUFFIXES = ("1", "2", "3")

T = TypeVar("T")


def index_of(states: Iterable[ProviderState]) -> ProviderIndex:
    index = ProviderIndex()
    for state in states:
        index.put(state)
    return index


def provider_id(number: int) -> ProviderId:
    return ProviderId(UUID(int=0xB000 + number))


def rarely(rare: Sequence[T], usual: T, one_in: int = 4) -> st.SearchStrategy[T]:
    """A rare value once in so many draws."""
    return st.sampled_from([usual] * ((one_in - 1) * len(rare)) + list(rare))


ROOMY, TIGHT = InventoryState(total=8), InventoryState(total=2)
SHELVES: tuple[dict[str, InventoryState], ...] = (
    {},
    {"VCPU": ROOMY},
    {"VCPU": ROOMY, "MEMORY_MB": ROOMY},
    {"VCPU": ROOMY, "MEMORY_MB": ROOMY, "DISK_GB": ROOMY},
    {"DISK_GB": ROOMY},
    {"DISK_GB": TIGHT, "VCPU": TIGHT},
    {"VCPU": TIGHT},
    {"VCPU": TIGHT, "MEMORY_MB": TIGHT},
    {"VCPU": InventoryState(total=4, used=2), "MEMORY_MB": InventoryState(total=3)},
    {"VCPU": InventoryState(total=3, allocation_ratio=1.5, used=2)},
    {"VCPU": InventoryState(total=3, allocation_ratio=0.7), "DISK_GB": InventoryState(total=2, used=5)},
    {"VCPU": InventoryState(total=9, reserved=6), "MEMORY_MB": InventoryState(total=3, reserved=3)},
    {"VCPU": InventoryState(total=9, min_unit=2), "MEMORY_MB": InventoryState(total=8, step_size=2)},
    {"VCPU": InventoryState(total=9, max_unit=2), "MEMORY_MB": InventoryState(total=9, max_unit=3)},
)
ONE_EACH = tuple((trait,) for trait in TRAITS)
SOME_TRAITS = (*ONE_EACH, TRAITS[:2], TRAITS[1:], TRAITS)
SHARING = tuple((*traits, SHARES) for traits in ((), *ONE_EACH))
SOME_AGGREGATES = tuple(aggregates for size in (1, 2) for aggregates in combinations(AGGREGATES, size))


@st.composite
def random_forests(draw: st.DrawFn) -> list[ProviderState]:
    states: list[ProviderState] = []
    for form in draw(st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=4)):
        first = len(states)
        if first + len(form) > PROVIDERS_MAX:
            break
        for place, parent in enumerate(form):
            states.append(
                ProviderState(
                    internal=first + place + 1,
                    id=provider_id(first + place),
                    name=f"p{first + place}",
                    root=provider_id(first),
                    parent=None if parent < 0 else provider_id(first + parent),
                    inventories=draw(st.sampled_from(SHELVES)),
                    traits=draw(st.sampled_from((*[()] * 6, *SOME_TRAITS, *SHARING))),
                    aggregates=draw(rarely(SOME_AGGREGATES, (), one_in=2)),
                )
            )
    return states


SMALL_ASKS: tuple[dict[str, int], ...] = (
    *[{"VCPU": 1}] * 4,
    *({"VCPU": 2}, {"VCPU": 3}, {"DISK_GB": 1}, {"MEMORY_MB": 2}),
    *({"VCPU": 1, "MEMORY_MB": 1}, {"VCPU": 2, "MEMORY_MB": 2}),
)
LARGE_ASKS = (*SMALL_ASKS, {"VCPU": 1, "MEMORY_MB": 1, "DISK_GB": 1}, {"VCPU": 1, "DISK_GB": 2})
ANY_OF = (*[(names,) for names in (*ONE_EACH, TRAITS[:2], TRAITS[1:])], (TRAITS[:1], TRAITS[1:]))
MEMBER_OF = ((AGGREGATES[:1],), (AGGREGATES[:2],), (AGGREGATES[:1], AGGREGATES[1:]), ((UNKNOWN_AGGREGATE,),))


@st.composite
def groups(draw: st.DrawFn, suffix: str, *, may_be_resourceless: bool) -> Group:
    resources = draw(st.sampled_from(SMALL_ASKS if suffix else LARGE_ASKS))
    required: tuple[tuple[str, ...], ...] = draw(rarely(ANY_OF, ()))
    if may_be_resourceless and draw(st.booleans()):
        resources, required = {}, draw(rarely(((),), ((TRAITS[0],),)))
    forbidden: tuple[str, ...] = draw(rarely(ONE_EACH, (), one_in=6))
    return Group(
        suffix=suffix,
        resources=resources,
        required=tuple(names for names in required if not set(names) <= set(forbidden)),
        forbidden=forbidden,
        member_of=draw(rarely(MEMBER_OF, (), one_in=6)),
        forbidden_aggregates=draw(
            rarely([(each,) for each in (*AGGREGATES, UNKNOWN_AGGREGATE)], (), one_in=6)
        ),
        in_tree=draw(rarely([provider_id(number) for number in range(PROVIDERS_MAX + 1)], None, one_in=12)),
    )


@st.composite
def queries(draw: st.DrawFn) -> CandidatesQuery:
    """A valid query: the group without a suffix, up to three with one, or both."""
    suffixes = SUFFIXES[: draw(st.sampled_from([0, 0, 1, 2, 2, 2, 3, 3]))]
    subtrees = [each for size in (2, 2, 3, 1) for each in combinations(suffixes, size)]
    same_subtree = draw(st.lists(st.sampled_from(subtrees), max_size=2)) if subtrees else []
    named = {suffix for each in same_subtree for suffix in each}
    asked = [draw(groups(suffix, may_be_resourceless=suffix in named)) for suffix in suffixes]
    if not any(group.resources for group in asked) or draw(st.booleans()):
        asked.insert(0, draw(groups("", may_be_resourceless=False)))
    root_required = draw(rarely(ONE_EACH, (), one_in=12))
    root_forbidden = draw(rarely(ONE_EACH, (), one_in=12))
    return CandidatesQuery(
        groups=tuple(asked),
        group_policy=draw(st.sampled_from(["none", "isolate"] if len(suffixes) > 1 else ["none", None])),
        same_subtree=tuple(same_subtree),
        root_required=root_required,
        root_forbidden=() if root_forbidden == root_required else root_forbidden,
        one_provider_per_tree=draw(rarely([True], usual=False, one_in=8)),
    )
