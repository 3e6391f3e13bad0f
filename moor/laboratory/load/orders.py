"""Makes the orders of a load run, and notes how each of them ended.

First come boots; then moves, mixed with further boots and deletes. The latency of an order is what a client sees: from the
moment when it is handed to the publisher until the event of its end.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, structs

from bus.message import Message
from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    DeleteInstance,
    Flavor,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceId,
    InstanceState,
    MoveKind,
    RequestId,
)
from bus.messages.moves import MoveInstance
from bus.topology import CELL0
from moor.instances.request_ids import new_request_ids
from moor.laboratory.load.firing import Run
from moor.laboratory.load.results import OfKind, latency_of
from scheduler_worker.requests.instance_ids import instance_id_of

FLAVOR = Flavor(name="load", vcpus=1, ram_mb=1024, root_gb=8)
PROJECT = "moor-load"
# The deadline of each request.
DEADLINE_S = 300
Kind = MoveKind | Literal["boot", "delete"]
MOVES: tuple[MoveKind, ...] = ("migrate", "live-migrate", "resize")
MIX: tuple[Kind, ...] = (*MOVES, "boot", "delete")
# How an order ends that did what it should.
DONE = ("active", "deleted", "confirmed")


class Boot(Struct):
    """An instance of a load run: its state at the end of its last order, and its present flavor."""

    flavor: Flavor
    state: InstanceState | None = None


class Order(Struct):
    """One order of a load run, with the times at which it was sent and ended.

    `outcome` is how a move ended, or the state of the instance after a boot or a delete; `rejected` if the
    schedulers refused the order. It is empty while the order is under way.
    """

    kind: Kind
    request: RequestId
    boot: Boot
    sent_s: float
    ended_s: float = 0.0
    outcome: str = ""


def mix_of(moves: int) -> list[Kind]:
    """The kinds of the orders in a mix with this number of moves, in the order in which they are given.

    The kinds of moves take turns. After each round of them come a boot and a delete.
    """
    rounds, more = divmod(moves, len(MOVES))
    return [*MIX * rounds, *MOVES[:more]]


class OrderRun(Run):
    """Makes one order for each of `kinds`, one after the other, and notes from events how it ended.

    A move or a delete takes the instance that has been without an order for the longest time: by then, the schedulers know
    how its last order ended. A resize gives an instance the larger flavor, and its next resize the smaller one.
    """

    def __init__(
        self, kinds: Sequence[Kind], flavor: Flavor, boots: Mapping[InstanceId, Boot] | None = None
    ) -> None:
        """`boots` has the instances that exist before this run, by their ids."""
        super().__init__(len(kinds))
        self._kinds = kinds
        self._flavors = (flavor, structs.replace(flavor, vcpus=2 * flavor.vcpus))
        self.orders: list[Order] = []
        self.instances = {id_: structs.replace(boot) for id_, boot in (boots or {}).items()}
        self._under_way: dict[InstanceId, Order] = {}
        self._idle = deque(
            id_ for id_, boot in self.instances.items() if boot.state and boot.state.state == "active"
        )

    def next_orders(self, count: int) -> Sequence[Message]:
        """The messages of the next orders: `count` of them, or fewer if too few instances are idle."""
        messages: list[Message] = []
        for request in new_request_ids(count):
            kind = self._kinds[self.sent]
            if kind == "boot":
                instance = instance_id_of(request, 0)
                boot = self.instances[instance] = Boot(self._flavors[0])
            elif self._idle:
                instance = self._idle.popleft()
                boot = self.instances[instance]
            else:
                break
            self._under_way[instance] = order = Order(kind, request, boot, time.perf_counter())
            self.orders.append(order)
            self.sent += 1
            messages.append(self._message(order, instance))
        return messages

    def _message(self, order: Order, instance: InstanceId) -> Message:
        kind, request = order.kind, order.request
        if kind == "boot":
            return BuildInstance(
                request_id=request, flavor=order.boot.flavor, project=PROJECT, deadline_s=DEADLINE_S
            )
        if kind == "delete":
            return DeleteInstance(instance=instance)
        flavor = self._other_flavor(order.boot) if kind == "resize" else None
        return MoveInstance(request_id=request, instance=instance, kind=kind, flavor=flavor, confirm_s=0)

    def _other_flavor(self, boot: Boot) -> Flavor:
        small, large = self._flavors
        return large if boot.flavor == small else small

    def hear(self, message: Message) -> None:
        match message:
            case (
                InstanceActive(instance=state)
                | InstanceFailed(instance=state)
                | InstanceDeleted(instance=state)
            ) if (order := self._under_way.get(state.id)) and (outcome := _outcome(order, state)):
                order.boot.state = state
                if order.kind == "resize" and outcome in DONE:
                    order.boot.flavor = self._other_flavor(order.boot)
                self._end(state.id, outcome)
            case BuildRejected(request_id=request) as rejected:
                for id_ in [id_ for id_, each in self._under_way.items() if each.request == request]:
                    if self._under_way[id_].kind == "boot":
                        raise RuntimeError(f"a request was rejected: {rejected}")
                    self._end(id_, "rejected")
            case _:
                pass

    def _end(self, instance: InstanceId, outcome: str) -> None:
        order = self._under_way.pop(instance)
        order.outcome, order.ended_s = outcome, time.perf_counter()
        self._has_ended(order.sent_s if outcome in DONE else None)
        state = order.boot.state
        if state is not None and state.state == "active":
            self._idle.append(instance)


def _outcome(order: Order, state: InstanceState) -> str:
    """How the order ended, if this state says so; empty while it is under way."""
    match order.kind:
        case "boot":
            return state.state
        case "delete":
            return "deleted" if state.state == "deleted" else ""
        case _:
            return state.move.outcome if state.move and state.move.request_id == order.request else ""


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


def latencies_of(orders: Iterable[Order]) -> list[float]:
    """The times in seconds from sending to end of the orders that succeeded."""
    return [each.ended_s - each.sent_s for each in orders if each.outcome in DONE]


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


def amounts_of(flavor: Flavor) -> dict[str, int]:
    """How much of each resource class an instance of this flavor holds."""
    sizes = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.ram_mb, "DISK_GB": flavor.root_gb}
    return sizes | {key.removeprefix("resources:"): int(amount) for key, amount in flavor.extra_specs.items()}
