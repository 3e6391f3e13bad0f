"""What some boots ask for beside an amount of CPUs: groups of resources, ports, volumes, zones, capabilities. It also
has the slow, obvious rule that says which providers of a host can serve such a boot.

The rule shares no code with the search for candidates: it tries every provider for every part.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import product

from msgspec import Struct

from bus.messages.build import BuildInstance
from engine.flavors import Flavor, PortRequest, VolumeRequest
from engine.inventories import AggregateId, ProviderId, ProviderState

# What an instance takes: provider and resource class, with the amount.
Taken = Mapping[tuple[ProviderId, str], int]
Placement = frozenset[tuple[tuple[ProviderId, str], int]]
NUMA_CELL = "HW_NUMA_ROOT"
PHYSNET = "CUSTOM_PHYSNET_"


class Part(Struct, frozen=True):
    """Amounts, and the traits of their provider: one provider gives all amounts of a part. A part without amounts
    only needs a provider with its traits.

    The part without a suffix may get each class from another provider; these together have the required traits.
    """

    suffix: str
    amounts: tuple[tuple[str, int], ...] = ()
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    preferred: tuple[tuple[str, float], ...] = ()
    # A port or a volume is a part of its own, which the flavor does not name. A cell of the guest follows from its sizes.
    kind: str = ""
    physical_network: str = ""
    # Of a device: how near it is to the cells of the guest.
    nearness: str = ""

    @property
    def all_required(self) -> frozenset[str]:
        network = {PHYSNET + self.physical_network.upper()} if self.physical_network else set()
        return frozenset({*self.required, *network})


class Demand(Struct, frozen=True):
    parts: tuple[Part, ...]
    isolates: bool = False
    same_subtree: tuple[str, ...] = ()
    zone: str = ""
    member_of: tuple[AggregateId, ...] = ()
    forbidden_aggregates: tuple[AggregateId, ...] = ()
    # The name of a host's capability, and one of its words.
    capability: tuple[str, str] | None = None
    # For the plugin of another package.
    watts: int = 0
    # The shape of the guest: keys of the flavor, with its CPUs and memory. Its parts have what follows from these.
    guest: tuple[tuple[str, str], ...] = ()
    sizes: tuple[int, int] = (0, 0)

    @property
    def has_groups(self) -> bool:
        return any(part.suffix for part in self.parts)

    @property
    def amounts(self) -> Counter[str]:
        return _sum(each.amounts for each in self.parts)

    @property
    def extra_specs(self) -> dict[str, str]:
        specs: dict[str, str] = dict(self.guest)
        for part in self.parts:
            if part.kind:
                continue
            specs |= {f"resources{part.suffix}:{name}": str(amount) for name, amount in part.amounts}
            specs |= {f"trait{part.suffix}:{trait}": "required" for trait in part.required}
            specs |= {f"trait{part.suffix}:{trait}": "forbidden" for trait in part.forbidden}
            specs |= {
                f"trait{part.suffix}:{trait}": f"preferred:{weight:g}" for trait, weight in part.preferred
            }
        if sum(bool(part.suffix) and part.kind != "cell" for part in self.parts) > 1 or self.isolates:
            specs["group_policy"] = "isolate" if self.isolates else "none"
        if self.same_subtree:
            specs["same_subtree"] = ",".join(self.same_subtree)
        if self.capability is not None:
            name, word = self.capability
            specs[f"capabilities:{name}"] = f"<in> {word}"
        if self.watts:
            specs["power:watts"] = str(self.watts)
        return specs

    def fill_in(self, build: BuildInstance) -> BuildInstance:
        """The build request with this demand in place of its flavor."""
        return BuildInstance(
            **{name: getattr(build, name) for name in build.__struct_fields__ if name not in _FILLED_IN},
            flavor=Flavor(
                name="demanding", vcpus=self.sizes[0], ram_mb=self.sizes[1], extra_specs=self.extra_specs
            ),
            availability_zone=self.zone,
            member_of=(self.member_of,) if self.member_of else (),
            forbidden_aggregates=self.forbidden_aggregates,
            port_requests=tuple(
                PortRequest(
                    id=part.suffix,
                    resources=dict(part.amounts),
                    physical_network=part.physical_network,
                    required=part.required,
                    forbidden=part.forbidden,
                )
                for part in self.parts
                if part.kind == "port"
            ),
            volume_requests=tuple(
                VolumeRequest(
                    id=part.suffix,
                    resources=dict(part.amounts),
                    required=part.required,
                    forbidden=part.forbidden,
                )
                for part in self.parts
                if part.kind == "volume"
            ),
        )


_FILLED_IN = (
    *("flavor", "availability_zone", "member_of", "forbidden_aggregates"),
    *("port_requests", "volume_requests"),
)


class ProviderNow(Struct, frozen=True):
    """A provider at one moment. `free` has the classes of its inventories."""

    parent: ProviderId | None
    traits: frozenset[str]
    free: Mapping[str, int]


Tree = Mapping[ProviderId, ProviderNow]


def ways(demand: Demand, tree: Tree) -> Iterator[Taken]:
    """Everything that an instance may take from these providers, whether there is room or not."""
    granular = [part for part in demand.parts if part.suffix]
    outside = [part for part in demand.parts if not part.suffix]
    classes = [(name, amount) for part in outside for name, amount in part.amounts]
    for serving in product(*[_serving(part, tree) for part in granular]):
        by_suffix = dict(zip([part.suffix for part in granular], serving, strict=True))
        if demand.isolates and len(set(serving)) < len(serving):
            continue
        if demand.same_subtree and not _is_one_subtree(
            [by_suffix[each] for each in demand.same_subtree], tree
        ):
            continue
        if not _stands_in_cells(granular, serving, tree):
            continue
        for giving in product(
            *[[id_ for id_, each in tree.items() if name in each.free] for name, _ in classes]
        ):
            if not _suits(outside, [tree[each] for each in giving]):
                continue
            taken: Counter[tuple[ProviderId, str]] = Counter()
            for provider, (name, amount) in zip(giving, classes, strict=True):
                taken[provider, name] += amount
            for provider, part in zip(serving, granular, strict=True):
                for name, amount in part.amounts:
                    taken[provider, name] += amount
            yield taken


def has_room(demand: Demand, tree: Tree) -> bool:
    return any(
        all(tree[provider].free[name] >= amount for (provider, name), amount in taken.items())
        for taken in ways(demand, tree)
    )


def tree_of(states: Iterable[ProviderState]) -> Tree:
    return {
        state.id: ProviderNow(
            state.parent,
            frozenset(state.traits),
            {name: stock.total - stock.used for name, stock in state.inventories.items()},
        )
        for state in states
    }


def placements(demand: Demand, states: Collection[ProviderState]) -> set[Placement]:
    """All ways for which these providers have room, in the steps of their inventories."""
    tree = tree_of(states)
    steps = {(each.id, name): stock.step_size for each in states for name, stock in each.inventories.items()}
    return {
        frozenset(taken.items())
        for taken in ways(demand, tree)
        if all(
            tree[part[0]].free[part[1]] >= amount and amount % steps[part] == 0
            for part, amount in taken.items()
        )
    }


def _serving(part: Part, tree: Tree) -> list[ProviderId]:
    return [
        id_
        for id_, each in tree.items()
        if all(name in each.free for name, _ in part.amounts)
        and part.all_required <= each.traits
        and each.traits.isdisjoint(part.forbidden)
    ]


def _stands_in_cells(granular: list[Part], serving: tuple[ProviderId, ...], tree: Tree) -> bool:
    """Is each cell of the guest at a provider of its own, a NUMA cell if there are several, and each device near enough?"""
    homes = [provider for part, provider in zip(granular, serving, strict=True) if part.kind == "cell"]
    if len(set(homes)) < len(homes):
        return False
    if len(homes) > 1 and not all(NUMA_CELL in tree[home].traits for home in homes):
        return False
    for part, provider in zip(granular, serving, strict=True):
        line = _line(provider, tree)
        in_cell = any(NUMA_CELL in tree[each].traits for each in line)
        is_near = any(home in line for home in homes)
        if part.nearness == "required" and not is_near:
            return False
        if part.nearness == "legacy" and in_cell and not is_near:
            return False
    return True


def _suits(outside: Iterable[Part], giving: Iterable[ProviderNow]) -> bool:
    traits = frozenset[str]().union(*[each.traits for each in giving])
    return all(part.all_required <= traits and traits.isdisjoint(part.forbidden) for part in outside)


def _is_one_subtree(providers: list[ProviderId], tree: Tree) -> bool:
    """Whether one of these providers is above all the others, so that they are in one subtree."""
    return any(all(top in _line(each, tree) for each in providers) for top in providers)


def _line(provider: ProviderId, tree: Tree) -> list[ProviderId]:
    """The provider and all its ancestors."""
    line: list[ProviderId] = []
    above: ProviderId | None = provider
    while above is not None and above in tree:
        line.append(above)
        above = tree[above].parent
    return line


def _sum(amounts: Iterable[tuple[tuple[str, int], ...]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in amounts:
        total.update(dict(each))
    return total
