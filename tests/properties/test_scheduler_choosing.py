"""The scheduler's choice against a slow, obvious one: a chosen host qualifies and is among the best, and no request is
refused while a host qualifies.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from engine.choosing.choosing import Chosen, choose
from engine.choosing.plugins import BAND, Plugins
from engine.choosing.weighers import FreeAmount
from engine.hosts import NODE, HostSetting, HostState
from engine.inventories import InventoryState, ProviderId, ProviderState
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from tests.contracts.placement_orders import provider
from tests.plugins import standard_plugins
from tests.properties.bounds import THOROUGH, share, times
from tests.unit.choosing.scheduler_worlds import a_picture

IO_OPS_MAX, INSTANCES_MAX = 3, 4
PLUGINS = standard_plugins(io_ops_max=IO_OPS_MAX, instances_max=INSTANCES_MAX)
WEIGHED = ("VCPU", "MEMORY_MB", "DISK_GB")
# Weighers that spread, and weighers that pack.
SPREADING, PACKING = (
    structs.replace(PLUGINS, weighers=tuple(FreeAmount(name, name, multiplier) for name in WEIGHED))
    for multiplier in (1.0, -1.0)
)


@dataclass
class Host:
    name: str
    inventories: dict[str, InventoryState] | None
    traits: tuple[str, ...]
    cell: str
    booked_cell: str
    registered: bool = True
    up: bool = True
    enabled: bool = True
    zone: str = "z1"
    instances: int = 0
    io_ops: int = 0
    is_node: bool = False
    projects: tuple[str, ...] = ()
    free: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for resource, inventory in (self.inventories or {}).items():
            self.free[resource] = (
                int((inventory.total - inventory.reserved) * inventory.allocation_ratio) - inventory.used
            )

    def first_failure(self, spec: InstanceSpec) -> str | None:
        asked_for = not spec.hosts or self.name in spec.hosts
        holds = {
            "registered": self.registered,
            "up": self.up,
            "enabled": self.enabled,
            "inventory": self.inventories is not None,
            "cell": self.booked_cell == self.cell,
            "bare metal": self.is_asked_for(spec) if self.is_node else not spec.is_for_nodes,
            "projects": not self.projects or spec.project in self.projects,
            "availability zone": spec.availability_zone in ("", self.zone),
            "asked hosts": asked_for and self.name not in spec.ignore_hosts,
            "traits": set(spec.required) <= set(self.traits) and not set(spec.forbidden) & set(self.traits),
            "io ops": self.io_ops < IO_OPS_MAX,
            "instances": self.instances < INSTANCES_MAX,
            "capacity": all(self.gives(*amount) for amount in spec.amounts),
        }
        # A host that is neither registered nor up is counted under the first of these.
        return next((name for name, is_so in holds.items() if not is_so), None)

    def is_asked_for(self, spec: InstanceSpec) -> bool:
        return any(resource in (self.inventories or {}) for resource, _ in spec.amounts)

    def gives(self, resource: str, amount: int) -> bool:
        inventory = (self.inventories or {}).get(resource)
        return (
            inventory is not None
            and inventory.min_unit <= amount <= inventory.max_unit
            and amount % inventory.step_size == 0
            and amount <= self.free[resource]
        )

    def take(self, spec: InstanceSpec) -> None:
        self.instances += 1
        self.io_ops += 1
        for resource, amount in spec.amounts:
            self.free[resource] -= amount


STOCKS = (
    *(InventoryState(total=total, used=used) for total in (4, 8, 12) for used in (0, 1, 3)),
    InventoryState(total=3, used=5),
    InventoryState(total=9, reserved=1, allocation_ratio=1.5, used=2),
    InventoryState(total=9, max_unit=1),
    InventoryState(total=9, min_unit=2),
    InventoryState(total=9, step_size=2),
)
GOLD = "CUSTOM_GOLD"
ONE = InventoryState(total=1, max_unit=1)
A_NODE: dict[str, object] = {"is_node": True, "inventories": {GOLD: ONE}}
QUIRKS: tuple[dict[str, object], ...] = (
    *({} for _ in range(16)),
    {"up": False},
    {"enabled": False},
    {"registered": False, "up": False, "enabled": False},
    {"inventories": None},
    {"booked_cell": "c3"},
    {"zone": "z9"},
    {"io_ops": 2},
    {"io_ops": 3},
    {"instances": 4},
    *(A_NODE for _ in range(10)),
    A_NODE | {"projects": ("shop",)},
    A_NODE | {"projects": ("bank", "shop")},
    A_NODE | {"inventories": {GOLD: InventoryState(total=1, reserved=1, max_unit=1)}},
    A_NODE | {"inventories": {GOLD: ONE, "VCPU": InventoryState(total=8)}},
    A_NODE | {"inventories": {}},
    {"inventories": {GOLD: InventoryState(total=2), "VCPU": InventoryState(total=8)}},
)


@st.composite
def hosts(draw: st.DrawFn, name: str) -> Host:
    classes = draw(st.sampled_from([WEIGHED, WEIGHED, WEIGHED, ("VCPU", "VGPU")]))
    cell = draw(st.sampled_from(["c1", "c1", "c2"]))
    told: dict[str, Any] = {
        "name": name,
        "inventories": {resource: draw(st.sampled_from(STOCKS)) for resource in classes},
        "traits": draw(st.sampled_from([(), ("CUSTOM_A",), ("CUSTOM_A",), ("CUSTOM_A", "CUSTOM_B")])),
        "cell": cell,
        "booked_cell": cell,
    }
    return Host(**told | draw(st.sampled_from(QUIRKS)))


@st.composite
def clouds(draw: st.DrawFn) -> list[Host]:
    return [draw(hosts(f"h{number}")) for number in range(draw(st.sampled_from([6, 8, 4, 1, 0])))]


PICKY: tuple[dict[str, object], ...] = (
    *({} for _ in range(6)),
    {"required": ("CUSTOM_A",)},
    {"required": ("CUSTOM_A", "CUSTOM_B")},
    {"required": ("CUSTOM_NONE",)},
    {"forbidden": ("CUSTOM_B", "CUSTOM_NONE")},
    {"availability_zone": "z1"},
    {"availability_zone": "z9"},
    {"hosts": ("h1", "h2")},
    {"ignore_hosts": ("h0", "h3")},
)
AMOUNTS = (
    (("VCPU", 1),),
    (("MEMORY_MB", 1), ("VCPU", 2)),
    (("DISK_GB", 1), ("MEMORY_MB", 2), ("VCPU", 1)),
    (("VCPU", 1), ("VGPU", 1)),
    (("CUSTOM_NONE", 1),),
)
# As the reader of requests builds them: a project only where a node may be requested.
OF_NODES: tuple[dict[str, object], ...] = (
    *({} for _ in range(5)),
    {"project": "shop"},
    {"project": "bank"},
    {"project": "shop", "is_for_nodes": True},
    {"is_for_nodes": True, "required": ("CUSTOM_B",)},
)


def a_spec(amounts: tuple[tuple[str, int], ...], picky: dict[str, Any]) -> InstanceSpec:
    return InstanceSpec(amounts=amounts, **picky)


WISHES = st.one_of(
    *[st.builds(a_spec, st.sampled_from(AMOUNTS[:3] * 4 + AMOUNTS[3:]), st.sampled_from(PICKY))] * 3,
    st.builds(a_spec, st.just(((GOLD, 1),)), st.sampled_from(OF_NODES)),
)


@st.composite
def batches(draw: st.DrawFn) -> list[InstanceSpec]:
    shapes = draw(st.lists(WISHES, min_size=1, max_size=3))
    length = draw(st.sampled_from([8, 12, 1, 3]))
    return draw(st.lists(st.sampled_from(shapes), min_size=length, max_size=length))


def picture_of(cloud: Sequence[Host]) -> Picture:
    return a_picture(
        *[_booked(host, number) for number, host in enumerate(cloud) if host.inventories is not None],
        hosts=tuple(_registered(host) for host in cloud if host.registered),
    )


def _registered(host: Host) -> HostState:
    return HostState(
        id=provider(host.name),
        name=host.name,
        cell=host.cell,
        up=host.up,
        setting=HostSetting(mode="up" if host.enabled else "draining"),
        io_ops=host.io_ops,
        availability_zone=host.zone,
        kind=NODE if host.is_node else "",
        projects=host.projects,
    )


def _booked(host: Host, number: int) -> ProviderState:
    return ProviderState(
        internal=number + 1,
        id=provider(host.name),
        name=host.name,
        root=provider(host.name),
        cell=host.booked_cell,
        shape=number,
        inventories=host.inventories or {},
        traits=host.traits,
        consumers=host.instances,
    )


class Scale:
    """The scores of hosts, relative to those that qualified when a spec was first considered."""

    def __init__(self, qualified: Sequence[Host], *, is_packing: bool) -> None:
        self._sign = -1 if is_packing else 1
        self._most = {
            name: max((host.free.get(name, 0) for host in qualified), default=0) for name in WEIGHED
        }

    def score(self, host: Host) -> float:
        return self._sign * sum(
            host.free.get(name, 0) / most for name, most in self._most.items() if most > 0
        )


def test_every_choice_is_one_that_the_slow_way_could_have_made() -> None:
    met: Counter[str] = Counter()

    @times(3)
    @given(
        cloud=clouds(),
        specs=batches(),
        plugins=st.sampled_from([SPREADING, PACKING]),
        salt=st.integers(0, 3),
        alternates=st.sampled_from([2, 0, 1, 3]),
    )
    def check(
        cloud: list[Host], specs: list[InstanceSpec], plugins: Plugins, salt: int, alternates: int
    ) -> None:
        outcomes = choose(picture_of(cloud), specs, plugins, salt, alternates)

        by_id = {provider(host.name): host for host in cloud}
        # As they are decided: equal ones together.
        for spec in dict.fromkeys(specs):
            mine = [outcome for asked, outcome in zip(specs, outcomes, strict=True) if asked == spec]
            taken = _follow(spec, mine, by_id, is_packing=plugins is PACKING)
            for outcome in mine:
                if isinstance(outcome, NoValidHost):
                    _check_refusal(spec, outcome, by_id.values())
                else:
                    _check_alternates(spec, outcome, by_id, alternates)
                    met["nodes"] += outcome.choice.kind == NODE
                    met["alternates"] += len(outcome.alternates)
            met["chosen"] += taken
            met["refused after others had a host"] += 0 < taken < len(mine)
            met["refused"] += len(mine) - taken

    check()
    assert min(met[what] for what in ("chosen", "refused", "alternates", "nodes")) > share(100), met
    assert met["refused after others had a host"] > 10


def _follow(
    spec: InstanceSpec,
    outcomes: list[Chosen | NoValidHost],
    by_id: dict[ProviderId, Host],
    *,
    is_packing: bool,
) -> int:
    """Take the chosen hosts one after another; check that each was free and as good as any. Returns how many."""
    scale = Scale(
        [host for host in by_id.values() if host.first_failure(spec) is None], is_packing=is_packing
    )
    for taken, outcome in enumerate(outcomes):
        qualified = [host for host in by_id.values() if host.first_failure(spec) is None]
        if isinstance(outcome, NoValidHost):
            assert not qualified, f"{spec} was refused, but {qualified[0]} would do"
            assert all(later == outcome for later in outcomes[taken:])
            return taken
        host = by_id[outcome.choice.share.host]
        assert host.first_failure(spec) is None
        assert scale.score(host) >= max(map(scale.score, qualified)) - BAND - 1e-6
        assert (outcome.choice.name, outcome.cell) == (host.name, host.cell)
        assert outcome.choice.kind == (NODE if host.is_node else "")
        amounts = [(one.provider, one.resource, one.amount) for one in outcome.choice.share.amounts]
        assert amounts == [(provider(host.name), *amount) for amount in spec.amounts]
        host.take(spec)
    return len(outcomes)


def _check_refusal(spec: InstanceSpec, outcome: NoValidHost, cloud: Iterable[Host]) -> None:
    assert {step.step: step.removed for step in outcome.steps} == Counter(
        host.first_failure(spec) for host in cloud
    )
    assert outcome.hosts == sum(step.removed for step in outcome.steps)
    if spec.hosts:
        assert {miss.host.lower() for miss in outcome.nearest} == set(spec.hosts)
    else:
        assert len(outcome.nearest) == min(3, outcome.hosts)
    assert all(miss.reason for miss in outcome.nearest)


def _check_alternates(
    spec: InstanceSpec, outcome: Chosen, by_id: dict[ProviderId, Host], alternates: int
) -> None:
    """Alternates fit even after everything that was chosen; there are as many as wanted, or as possible."""
    chosen = outcome.choice.share.host
    possible = [
        which
        for which, host in by_id.items()
        if which != chosen and host.cell == outcome.cell and host.first_failure(spec) is None
    ]
    named = [other.share.host for other in outcome.alternates]
    assert len(set(named)) == len(named) == min(alternates, len(possible))
    assert set(named) <= set(possible)


@THOROUGH
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 2)),
        min_size=1,
        max_size=5,
        unique=True,
    )
)
def test_a_picture_is_the_same_in_whatever_order_it_was_painted(told: list[tuple[int, int, int]]) -> None:
    """One state for each (host, revision), derived from both, since placement never sends two."""
    states = [
        ProviderState(
            internal=internal,
            id=provider(f"h{internal}"),
            name=f"h{internal}",
            root=provider(f"h{internal}"),
            shape=revision // 2,
            revision=revision,
            inventories={f"CUSTOM_{revision // 2}": InventoryState(total=9, used=revision)},
        )
        for internal, revision, _ in told
    ]

    def painted(order: Sequence[ProviderState]) -> dict[tuple[str, str], int]:
        picture = Picture()
        for state in order:
            picture.apply([state])
        return {
            (name, resource): int(stock.free[row])
            for row, name in enumerate(picture.columns.names)
            for resource, stock in picture.columns.stocks.items()
            if stock.free[row]
        }

    first = painted(states)
    assert all(painted(order) == first for order in permutations(states))
