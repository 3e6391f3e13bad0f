"""The orders of a load run: which they are, and how each of them ended.

First come boots, or a mix of orders: `--mix boot=90,multi:10=1,delete=20`. An entry is KIND[:COUNT][:SHAPE]=WEIGHT. Weights are relative,
and count orders: of this mix, each 90 boots come with one request for 10 instances and with 20 deletes. Then come moves, mixed with further
boots and deletes. The latency of an order is what a client sees: from the moment when it is due, or without a rate is handed to the
publisher, until the event of its end.
"""

import math
import re
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct, structs

from bus.message import Message
from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    DeleteInstance,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceState,
    MoveKind,
)
from bus.messages.moves import MoveInstance
from bus.messages.placement import ProvidersChanged
from bus.messages.projects import CreateGroup, GroupsFound
from bus.topology import CELL0
from bus.workers.connections import Station
from engine.flavors import Flavor, InstanceId, JoinedGroup, RequestId, instance_id_of
from engine.inventories import GroupId, ProviderId, ProviderState
from laboratory.ironic import SimulatedIronic
from laboratory.load.firing import DONE, Boot, Order, Run, latencies_of
from laboratory.load.results import OfKind, latency_of
from moor.client.bus_client import answers_of
from moor.client.requests import new_request_ids
from moor.clouds.cloud import flavor_of_nodes
from moor.showing import amounts_of

FLAVOR = Flavor(name="load", vcpus=1, ram_mb=1024, root_gb=8)
METAL = flavor_of_nodes("load")
PROJECT = "moor-load"
# The deadline of each request.
DEADLINE_S = 300
# How an order ends for which no instance was left.
NONE_LEFT = "no instance left"

Building = Literal["boot", "multi", "group", "metal"]
Needing = Literal["delete"] | MoveKind
Kind = Building | Needing
# These make instances, in the order in which an error names them; the others need one that rests.
BUILDING: tuple[Building, ...] = get_args(Building)
MOVES: tuple[MoveKind, ...] = ("migrate", "live-migrate", "resize")
NEEDING: tuple[Needing, ...] = ("delete", *MOVES)
# Of the kinds that may have a count: what it is without one, and the largest.
COUNTS: Mapping[str, tuple[int, int]] = {"multi": (10, 1000), "group": (3, 1000)}
SHAPED = ("boot", "multi", "group")
FORM = "KIND[:COUNT][:SHAPE]=WEIGHT,... such as boot=90,boot:4x8192x40=10,multi:10=1,group:3=5,delete=20"
_SHAPE = re.compile(r"([1-9]\d{0,3})x([1-9]\d{0,7})x(\d{1,6})", re.ASCII)


class Entry(Struct, frozen=True, kw_only=True):
    """One kind of order. `name` is how the mix names it. `count`: the instances of a request, or the members of a group."""

    name: str
    kind: Kind
    weight: float = 1.0
    count: int = 1
    # Of its instances: VCPUs, MB of memory and GB of disk.
    shape: tuple[int, ...] = ()

    @property
    def instances(self) -> int:
        """How many instances an order makes."""
        return self.count if self.kind == "multi" else int(self.kind in BUILDING)

    def flavor_from(self, usual: Flavor) -> Flavor:
        return structs.replace(usual, **dict(zip(("vcpus", "ram_mb", "root_gb"), self.shape, strict=False)))


Mix = Mapping[str, Entry]


def plain(*kinds: Kind) -> Mix:
    """Entries with nothing but their kind."""
    return {kind: Entry(name=kind, kind=kind) for kind in kinds}


AFTERWARDS = plain(*MOVES, "boot", "delete")


def read_mix(text: str) -> Mix:
    """The entries that this text names, by their names. Raise ValueError with the wrong entry."""
    entries: dict[str, Entry] = {}
    for part in text.split(","):
        entry = _read_entry(part.strip())
        if entry.name in entries:
            raise ValueError(f"has {entry.name} twice: give it one weight")
        entries[entry.name] = entry
    made = sum(each.weight * each.instances for each in entries.values())
    if not made:
        raise ValueError(f"is {text!r}, and makes no instance: one of {', '.join(BUILDING)} must be in it")
    gone = sum(each.weight for each in entries.values() if each.kind == "delete")
    if gone > made:
        raise ValueError(f"has {gone:g} deletes for {made:g} instances: there must not be more deletes")
    return entries


def _read_entry(text: str) -> Entry:
    name, equals, weight_text = text.partition("=")
    kind, *details = name.split(":")
    if not equals:
        raise ValueError(f"has {text!r}, must be {FORM}")
    if kind not in (*BUILDING, *NEEDING):
        raise ValueError(f"has {kind!r} in {text!r}, must be one of {', '.join((*BUILDING, *NEEDING))}")
    count, count_max = COUNTS.get(kind, (1, 1))
    shape: tuple[int, ...] = ()
    for place, detail in enumerate(details):
        if (found := _SHAPE.fullmatch(detail)) and kind in SHAPED and not shape:
            shape = tuple(map(int, found.groups()))
        elif kind in COUNTS and place == 0 and detail.isascii() and detail.isdecimal():
            count = int(detail)
        else:
            raise ValueError(f"has {detail!r} in {text!r}, {_allowed(kind)}")
    if not 1 <= count <= count_max:
        raise ValueError(f"has {count} in {text!r}, must be 1 to {count_max}")
    return Entry(name=name, kind=kind, weight=_weight(text, weight_text), count=count, shape=shape)


def _allowed(kind: str) -> str:
    counted = f"a count of 1 to {COUNTS[kind][1]}, or " if kind in COUNTS else ""
    if kind in SHAPED:
        return f"must be {counted}a shape VCPUSxRAM_MBxDISK_GB such as 4x8192x40"
    return f"but {kind} has neither count nor shape"


def _weight(text: str, weight_text: str) -> float:
    try:
        weight = float(weight_text)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ValueError(f"has weight {weight_text!r} in {text!r}, must be a number above 0")
    return weight


def names_for(mix: Mix, instances: int) -> list[str]:
    """The names of the orders that make this many instances, in the order in which they are given.

    Each kind comes at equal distances. If the last request asks for more instances than are left, the run makes these more.
    """
    names: list[str] = []
    made = 0
    for name in _by_turns(mix):
        if made >= instances:
            break
        names.append(name)
        made += mix[name].instances
    return names


def _by_turns(mix: Mix) -> Iterator[str]:
    """Each name by its weight: the one whose next turn is due first. A delete or move has its first turn after the others'."""
    turns = {name: (0.0 if entry.kind in BUILDING else 1.0) / entry.weight for name, entry in mix.items()}
    while True:
        name = min(turns, key=turns.__getitem__)
        turns[name] += 1 / mix[name].weight
        yield name


def mix_of(moves: int) -> list[str]:
    """The kinds of the orders in a mix with this number of moves, in the order in which they are given.

    The kinds of moves take turns. After each round of them come a boot and a delete.
    """
    rounds, more = divmod(moves, len(MOVES))
    return [*[*AFTERWARDS] * rounds, *MOVES[:more]]


class OrderRun(Run):
    """Makes one order for each of `names`, one after the other, and notes from events how it ended.

    A move or a delete takes the instance that has been without an order for the longest time: by then, the schedulers know
    how its last order ended. If no instance is idle, it waits for one, and the orders after it go first. A resize gives an instance the
    larger flavor, and its next resize the smaller one.
    """

    def __init__(
        self,
        names: Sequence[str],
        flavor: Flavor,
        boots: Mapping[InstanceId, Boot] | None = None,
        *,
        mix: Mix = AFTERWARDS,
        groups: Iterable[GroupId] = (),
        due_s: Sequence[float] = (),
    ) -> None:
        """`boots` has the instances that exist before this run, by their ids. `mix` has the entry of each name, and `groups` the
        group of each order of the kind `group`.
        """
        super().__init__(len(names), due_s)
        self._names = names
        self._mix = mix
        self._flavors = {
            name: METAL if entry.kind == "metal" else entry.flavor_from(flavor) for name, entry in mix.items()
        }
        self._groups = iter(groups)
        self.instances = dict(boots or {})
        # By ids as integers, since Python computes the hash of a UUID at each lookup.
        self._under_way: dict[int, tuple[Order, Boot]] = {}
        self._idle = deque(
            id_ for id_, boot in self.instances.items() if boot.state and boot.state.state == "active"
        )
        # Instances on nodes stay there, unless nothing else is built.
        built = {entry.kind for entry in mix.values()} - {"delete"}
        self._deletes_on_nodes = built == {"metal"}
        # Names and due times of orders that wait for an instance.
        self._waiting: deque[tuple[str, float]] = deque()

    def next_orders(self, count: int) -> Sequence[Message]:
        """The next orders: `count` of them, after those that can have their instance now."""
        orders: list[Message] = []
        requests = iter(new_request_ids(max(count, 0) + len(self._waiting)))
        while self._waiting and self._idle:
            orders.append(self._begun(*self._waiting.popleft(), next(requests)))
        while len(orders) < count and self.taken < self.count:
            name, due_s = self._names[self.taken], self._take()
            if self._idle or self._mix[name].kind in BUILDING:
                orders.append(self._begun(name, due_s, next(requests)))
            else:
                self._waiting.append((name, due_s))
        if self.taken == self.count and not self._under_way:
            self._give_up()
        return orders

    def _begun(self, name: str, due_s: float, request: RequestId) -> Message:
        entry = self._mix[name]
        if not self.is_scheduled:
            due_s = time.perf_counter()
        if entry.kind in BUILDING:
            ids = [instance_id_of(request, number) for number in range(entry.instances)]
            boots = [Boot(self._flavors[name], due_s, on_node=entry.kind == "metal") for _ in ids]
            self.instances.update(zip(ids, boots, strict=True))
        else:
            ids = [self._idle.popleft()]
            boots = [self.instances[ids[0]]]
        order = Order(name, due_s, request, boots, left=len(ids))
        for id_, boot in zip(ids, boots, strict=True):
            self._under_way[id_.int] = (order, boot)
        self._note(order)
        return self._message(entry, order, ids[0])

    def _message(self, entry: Entry, order: Order, instance: InstanceId) -> Message:
        kind, request = entry.kind, order.request
        assert request is not None, "only an order that is not sent has no request"
        (boot, *_) = order.boots
        match kind:
            case "boot" | "multi" | "group" | "metal":
                return BuildInstance(
                    request_id=request,
                    flavor=boot.flavor,
                    count=entry.instances,
                    group=JoinedGroup(id=next(self._groups)) if kind == "group" else None,
                    project=PROJECT,
                    deadline_s=DEADLINE_S,
                )
            case "delete":
                return DeleteInstance(instance=instance)
            case _:
                flavor = _next_size(boot) if kind == "resize" else None
                return MoveInstance(
                    request_id=request, instance=instance, kind=kind, flavor=flavor, confirm_s=0
                )

    def hear(self, message: Message) -> None:
        match message:
            case (
                InstanceActive(instance=state)
                | InstanceFailed(instance=state)
                | InstanceDeleted(instance=state)
            ) if (known := self._under_way.get(state.id.int)) and (outcome := self._outcome(known[0], state)):
                self._end_for(*known, state, outcome)
            case BuildRejected(request_id=request) as rejected:
                for order, boot in [each for each in self._under_way.values() if each[0].request == request]:
                    if boot.state is None:
                        raise RuntimeError(f"a request was rejected: {rejected}")
                    self._end_for(order, boot, boot.state, "rejected")
            case _:
                pass

    def _outcome(self, order: Order, state: InstanceState) -> str:
        """How the order ended for this instance, if this state says so; empty while it is under way."""
        match self._mix[order.kind].kind:
            case "boot" | "multi" | "group" | "metal":
                return state.state
            case "delete":
                return "deleted" if state.state == "deleted" else ""
            case _:
                return state.move.outcome if state.move and state.move.request_id == order.request else ""

    def _end_for(self, order: Order, boot: Boot, state: InstanceState, outcome: str) -> None:
        """The order has ended for this instance. A request for several has ended with the last one, and failed if one of them did."""
        del self._under_way[state.id.int]
        kind = self._mix[order.kind].kind
        boot.state = state
        if kind in BUILDING:
            boot.built, boot.heard_s = state, time.perf_counter()
        elif kind == "resize" and outcome in DONE:
            boot.flavor, boot.is_large = _next_size(boot), not boot.is_large
        if state.state == "active" and (self._deletes_on_nodes or not boot.on_node):
            self._idle.append(state.id)
        order.left -= 1
        if order.outcome in ("", *DONE):
            order.outcome = outcome
        if not order.left:
            self._end(order, order.outcome)

    def _give_up(self) -> None:
        """End the orders that wait for an instance though none is left, and nothing under way could bring one."""
        while self._waiting and not self._idle:
            order = Order(*self._waiting.popleft(), left=0)
            self._note(order)
            self._end(order, NONE_LEFT)


def _next_size(boot: Boot) -> Flavor:
    """The flavor of the instance after its next resize."""
    vcpus = boot.flavor.vcpus // 2 if boot.is_large else boot.flavor.vcpus * 2
    return structs.replace(boot.flavor, vcpus=vcpus)


def figures_of(orders: Iterable[Order], seconds: float) -> dict[str, OfKind]:
    by_kind: dict[str, list[Order]] = {}
    for each in orders:
        by_kind.setdefault(each.kind, []).append(each)
    return {
        kind: OfKind(
            count=len(some),
            outcomes=Counter(each.outcome for each in some),
            per_s=len(some) / seconds,
            latency_ms=latency_of(latencies_of(some)),
        )
        for kind, some in by_kind.items()
    }


def claims_of(rows: Iterable[InstanceState]) -> tuple[int, int]:
    """How many claims the schedulers made for these instances, and how many of them placement refused.

    Each instance outside of cell0 was granted one claim.
    """
    rows = tuple(rows)
    refused = sum(len(row.refusals) for row in rows)
    return refused + sum(row.cell != CELL0 for row in rows), refused


def flavor_with(classes: Iterable[str]) -> Flavor:
    """The flavor of a load run, with one unit of each of these resource classes that FLAVOR does not have."""
    others = sorted(set(classes) - set(amounts_of(FLAVOR)))
    return structs.replace(FLAVOR, extra_specs={f"resources:{name}": "1" for name in others})


async def groups_for(client: Station, mix: Mix, names: Sequence[str]) -> list[GroupId]:
    """Create the groups of these orders. Returns the group of each order of the kind `group`, in their order."""
    groups: list[GroupId] = []
    made: Counter[str] = Counter()
    open_groups: dict[str, GroupId] = {}
    for name in names:
        if (entry := mix.get(name)) is None or entry.kind != "group":
            continue
        if made[name] % entry.count == 0:
            open_groups[name] = GroupId(*new_request_ids(1))
        made[name] += 1
        groups.append(open_groups[name])
    orders = [CreateGroup(id=each, policy="anti-affinity", project=PROJECT) for each in dict.fromkeys(groups)]
    await answers_of(client, orders, GroupsFound)
    return groups


# The state changes of a load on bare metal. A change switches a node's maintenance on or off. It has ended when placement has it: its
# latency is the time from when it is due, or from Ironic's notification, handed to the bus, until placement's event that the node is
# reserved or free.


class ChangeRun(Run):
    """Sets or ends the maintenance of these nodes, `count` times in turn. A change has ended when placement has the
    node as reserved, or free. One that is due while every node has a change under way waits for a node.

    `known` has the revision of each node that was heard last, and whether it is reserved there. Placement's events keep that current.
    """

    def __init__(
        self,
        ironic: SimulatedIronic,
        nodes: Iterable[ProviderId],
        known: dict[ProviderId, tuple[int, bool]],
        count: int,
        due_s: Sequence[float] = (),
    ) -> None:
        super().__init__(count, due_s)
        self._ironic, self._known = ironic, known
        self._idle = deque(nodes)
        # By node: whether it must become reserved.
        self._under_way: dict[ProviderId, tuple[Order, bool]] = {}

    def next_orders(self, count: int) -> Sequence[Message]:
        """Begin changes at the simulated Ironic. There is nothing to send."""
        for _ in range(min(count, len(self._idle))):
            node = self._idle.popleft()
            reserves = not self._known[node][1]
            order = Order("change", self._take())
            self._note(order)
            self._under_way[node] = (order, reserves)
            self._ironic.set_maintenance(str(node), is_on=reserves, reason="moor load")
        return ()

    def hear(self, message: Message) -> None:
        for node in heard_of_nodes(
            self._known, message.providers if isinstance(message, ProvidersChanged) else ()
        ):
            order, wanted = self._under_way.get(node, (None, None))
            if order is not None and self._known[node][1] == wanted:
                del self._under_way[node]
                self._end(order, "changed")
                self._idle.append(node)


def heard_of_nodes(
    known: dict[ProviderId, tuple[int, bool]], providers: Iterable[ProviderState]
) -> list[ProviderId]:
    """Note what these tell of the nodes that are known. Returns the nodes of which they tell something newer."""
    news = [each for each in providers if each.id in known and each.revision > known[each.id][0]]
    for each in news:
        known[each.id] = (each.revision, any(stock.reserved for stock in each.inventories.values()))
    return [each.id for each in news]
