"""Plays a trace against the choice of hosts: the code that a scheduler runs for a batch, with a virtual clock."""

import heapq
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import numpy as np
from msgspec import Struct

from engine.balancing import LoadedHost, MovableGuest, plan_balance
from engine.choosing.choosing import Chosen, choose
from engine.flavors import InstanceId
from engine.goals import BalanceGoal
from engine.hosts import HostState
from engine.inventories import (
    ConsumerId,
    GroupMember,
    Holder,
    InventoryState,
    ProviderId,
    ProviderState,
    ProviderUsage,
)
from engine.picture.picture import Picture
from engine.picture.usual import SHAPES_MAX, Amounts
from laboratory.replay.trace import Arrival, Batch, read_trace
from scheduler_worker.settings import SchedulerSettings, plugins_of

# So many moments of a run are in its picture.
MOMENTS = 400
# Instances of so many processors are told of by themselves.
LARGE = 8
CELL = "replayed"


class HostKind(Struct, frozen=True):
    """So many equal hosts."""

    count: int
    vcpus: int
    memory_mb: int
    disk_gb: int = 0
    traits: tuple[str, ...] = ()


class ReplayMoment(Struct, frozen=True):
    """A moment of a run: processors in use, free ones, those of them that are stranded, hosts without instances, and the
    processors of all instances that were refused so far.

    Processors are stranded if instances of no usual shape of the trace could use them: their host has too little memory or disk left.
    """

    at_s: float
    used: int
    free: int
    stranded: int
    empty_hosts: int
    refused_vcpus: int
    spread: float = 0.0

    @property
    def stranded_share(self) -> float:
        return self.stranded / self.free if self.free else 0.0

    @property
    def used_share(self) -> float:
        return self.used / (self.used + self.free)


class BalanceRule(Struct, frozen=True):
    """So often hosts are evened by a plan of so many moves. An instance that has moved rests."""

    goal: BalanceGoal
    every_s: float
    moves_max: int
    rest_s: float = 86_400.0


class Played(Struct, frozen=True, kw_only=True):
    """The outcome of one run. `peak` is the largest share of the processors that was in use. `stranded`, a share of the free
    processors, `empty_hosts` and `spread` (the standard deviation of the hosts' loads) are means over the run. `moves` by balance: `moved_most`
    is how often one instance has moved.
    """

    policy: str
    instances: int
    refused: int
    refused_vcpus: int
    refused_large: int
    # By the processors of an instance.
    refused_by_vcpus: dict[int, int]
    peak: float
    stranded: float
    empty_hosts: float
    spread: float
    moves: int
    moved_most: int
    cpu_us_per_choice: float
    moments: tuple[ReplayMoment, ...]


@dataclass(order=True)
class _Living:
    """An instance on its host, the one that ends first before the others."""

    ends_s: float
    number: int
    guest: "_Guest" = field(compare=False)


@dataclass
class _Guest:
    """An instance on its host. `moved_s` is when it moved last, and `moves` how often it has; only one `is_free` that needs no more than room."""

    number: int
    host: int
    amounts: Amounts
    is_member: bool
    is_free: bool
    moved_s: float = -math.inf
    moves: int = 0


def play(
    policy: str,
    settings: SchedulerSettings,
    trace: Path,
    kinds: Sequence[HostKind],
    *,
    seed: int,
    balance: BalanceRule | None = None,
) -> Played:
    """Play the trace. The seed decides between equal hosts. May raise BadTraceError, or OSError."""
    return _Playing(policy, settings, read_trace(trace), kinds, seed=seed, balance=balance).played()


class _Playing:
    def __init__(
        self,
        policy: str,
        settings: SchedulerSettings,
        batches: Sequence[Batch],
        kinds: Sequence[HostKind],
        *,
        seed: int,
        balance: BalanceRule | None,
    ) -> None:
        self._policy = policy if balance is None else f"{policy}, {balance.goal}"
        self._balance = balance
        self._guests: dict[int, _Guest] = {}
        self._moves = self._moved_most = 0
        self._plugins = plugins_of(settings)
        self._batches = batches
        self._chance = random.Random(seed)
        self._salt = self._chance.getrandbits(32)
        self._cloud = _Cloud(kinds)
        self._usual = _usual_in(batches)
        self._living: list[_Living] = []
        self._instances = 0
        self._refused: Counter[int] = Counter()
        self._refused_vcpus = 0
        self._chose_s = 0.0

    def played(self) -> Played:
        moments: list[ReplayMoment] = []
        first_s, last_s = self._batches[0].at_s, self._batches[-1].at_s
        due_s, peak, even_s = first_s, 0, first_s
        for batch in self._batches:
            self._end(batch.at_s)
            if self._balance is not None and batch.at_s >= even_s:
                self._even(self._balance, batch.at_s)
                even_s = batch.at_s + self._balance.every_s
            self._play(batch)
            peak = max(peak, self._cloud.used)
            if batch.at_s >= due_s:
                moments.append(self._moment(batch.at_s))
                due_s = batch.at_s + (last_s - first_s) / MOMENTS
        free = sum(each.free for each in moments)
        return Played(
            policy=self._policy,
            instances=self._instances,
            refused=self._refused.total(),
            refused_vcpus=self._refused_vcpus,
            refused_large=sum(count for vcpus, count in self._refused.items() if vcpus >= LARGE),
            refused_by_vcpus=dict(sorted(self._refused.items())),
            peak=peak / self._cloud.vcpus,
            stranded=sum(each.stranded for each in moments) / free if free else 0.0,
            empty_hosts=sum(each.empty_hosts for each in moments) / len(moments),
            spread=sum(each.spread for each in moments) / len(moments),
            moves=self._moves,
            moved_most=self._moved_most,
            cpu_us_per_choice=self._chose_s * 1e6 / self._instances,
            moments=tuple(moments),
        )

    def _moment(self, at_s: float) -> ReplayMoment:
        cloud = self._cloud
        free = cloud.vcpus - cloud.used
        return ReplayMoment(
            at_s,
            cloud.used,
            free,
            free - cloud.usable_by(self._usual),
            cloud.empty,
            self._refused_vcpus,
            cloud.spread,
        )

    def _even(self, balance: BalanceRule, at_s: float) -> None:
        rested = at_s - balance.rest_s
        guests = [
            MovableGuest(InstanceId(_consumer(each.number)), f"h{each.host + 1}", dict(each.amounts))
            for each in self._guests.values()
            if each.is_free and each.moved_s <= rested
        ]
        plan = plan_balance(balance.goal, self._cloud.loads(), guests, balance.moves_max)
        moved = [(self._guests[step.guest.id.int - 1], int(step.to[1:]) - 1) for step in plan if step]
        self._cloud.move(moved)
        for guest, host in moved:
            guest.host, guest.moved_s, guest.moves = host, at_s, guest.moves + 1
            self._moved_most = max(self._moved_most, guest.moves)
        self._moves += len(moved)

    def _end(self, at_s: float) -> None:
        """End the instances whose time is over."""
        ended: list[_Guest] = []
        while self._living and self._living[0].ends_s <= at_s:
            ended.append(heapq.heappop(self._living).guest)
            del self._guests[ended[-1].number]
        self._cloud.free(ended)

    def _play(self, batch: Batch) -> None:
        specs = [each.spec for each in batch.arrivals]
        draw = self._chance.getrandbits(32)
        began_s = time.process_time()
        for spec in specs:
            self._cloud.picture.usual.note(spec.amounts)
        found = choose(
            self._cloud.picture, specs, self._plugins, self._salt, alternates=0, draw=draw, explained_max=0
        )
        self._chose_s += time.process_time() - began_s
        self._instances += len(specs)
        placed: list[tuple[int, int, Arrival]] = []
        for number, (arrival, chosen) in enumerate(
            zip(batch.arrivals, found, strict=True), self._instances - len(specs)
        ):
            if isinstance(chosen, Chosen):
                host = self._cloud.number_of[chosen.choice.share.host]
                placed.append((number, host, arrival))
                is_member, traits = arrival.spec.server_group is not None, arrival.spec.required
                guest = _Guest(number, host, arrival.spec.amounts, is_member, not (is_member or traits))
                self._guests[number] = guest
                if arrival.ends_s is not None:
                    heapq.heappush(self._living, _Living(arrival.ends_s, number, guest))
            else:
                self._refused[arrival.vcpus] += 1
                self._refused_vcpus += arrival.vcpus
        self._cloud.take(placed)


class _Cloud:
    """The hosts, as placement would tell a scheduler of them."""

    def __init__(self, kinds: Sequence[HostKind]) -> None:
        self.picture = Picture()
        of_hosts = [kind for kind in kinds for _ in range(kind.count)]
        self._ids = [ProviderId(UUID(int=number + 1)) for number in range(len(of_hosts))]
        self.number_of = {host: number for number, host in enumerate(self._ids)}
        self._capacity = {
            "VCPU": np.array([kind.vcpus for kind in of_hosts]),
            "MEMORY_MB": np.array([kind.memory_mb for kind in of_hosts]),
            "DISK_GB": np.array([kind.disk_gb for kind in of_hosts]),
        }
        self._used = {resource: np.zeros(len(of_hosts), dtype=np.int64) for resource in self._capacity}
        self._instances = np.zeros(len(of_hosts), dtype=np.int64)
        self._revision = 1
        self.picture.apply(
            ProviderState(
                internal=number + 1,
                id=host,
                name=f"h{number + 1}",
                root=host,
                cell=CELL,
                revision=1,
                inventories={
                    resource: InventoryState(total=int(totals[number]))
                    for resource, totals in self._capacity.items()
                    if totals[number]
                },
                traits=of_hosts[number].traits,
            )
            for number, host in enumerate(self._ids)
        )
        self.picture.put_hosts(
            HostState(id=host, name=f"h{number + 1}", cell=CELL, up=True)
            for number, host in enumerate(self._ids)
        )

    @property
    def vcpus(self) -> int:
        return int(self._capacity["VCPU"].sum())

    @property
    def used(self) -> int:
        return int(self._used["VCPU"].sum())

    @property
    def empty(self) -> int:
        """How many hosts have no instance."""
        return int((self._instances == 0).sum())

    @property
    def spread(self) -> float:
        """The standard deviation of the hosts' loads: the largest of their shares of processors and memory."""
        shares = [self._used[each] / self._capacity[each] for each in ("VCPU", "MEMORY_MB")]
        return float(np.maximum(*shares).std())

    def take(self, placed: Sequence[tuple[int, int, Arrival]]) -> None:
        for number, host, arrival in placed:
            self._count(host, arrival.spec.amounts, 1)
            if (group := arrival.spec.server_group) is not None:
                member = GroupMember(group.id, _consumer(number), 1, self._ids[host])
                self.picture.groups.join((member,))
        self._tell({host for _, host, _ in placed})

    def move(self, moved: Sequence[tuple[_Guest, int]]) -> None:
        """Move each of these guests from its host to the other one."""
        for guest, host in moved:
            self._count(guest.host, guest.amounts, -1)
            self._count(host, guest.amounts, 1)
        self._tell({row for guest, host in moved for row in (guest.host, host)})

    def loads(self) -> list[LoadedHost]:
        return [
            LoadedHost(
                name=f"h{number + 1}",
                cell=CELL,
                capacity={resource: int(total[number]) for resource, total in self._capacity.items()},
                used={resource: int(used[number]) for resource, used in self._used.items()},
            )
            for number in range(len(self._ids))
        ]

    def free(self, ended: Sequence[_Guest]) -> None:
        for each in ended:
            self._count(each.host, each.amounts, -1)
        if members := [Holder(_consumer(each.number), 1) for each in ended if each.is_member]:
            self.picture.groups.leave(members)
        self._tell({each.host for each in ended})

    def usable_by(self, shapes: Sequence[Amounts]) -> int:
        """How many free processors instances of one of these shapes could use."""
        free = {resource: self._capacity[resource] - used for resource, used in self._used.items()}
        usable = np.zeros(len(self._ids), dtype=np.int64)
        for shape in shapes:
            fitting = np.min([free[resource] // amount for resource, amount in shape], axis=0)
            np.maximum(usable, fitting * dict(shape).get("VCPU", 0), out=usable)
        return int(usable.sum())

    def _count(self, host: int, amounts: Amounts, times: int) -> None:
        for resource, amount in amounts:
            self._used[resource][host] += times * amount
        self._instances[host] += times

    def _tell(self, hosts: set[int]) -> None:
        if not hosts:
            return
        self._revision += 1
        self.picture.use(
            [
                ProviderUsage(
                    internal=number + 1,
                    id=self._ids[number],
                    base=1,
                    revision=self._revision,
                    used={
                        resource: int(used[number])
                        for resource, used in self._used.items()
                        if self._capacity[resource][number]
                    },
                    consumers=int(self._instances[number]),
                )
                for number in sorted(hosts)
            ]
        )


def _consumer(number: int) -> ConsumerId:
    return ConsumerId(UUID(int=number + 1))


def _usual_in(batches: Sequence[Batch]) -> list[Amounts]:
    """The most frequent shapes of the trace."""
    counts = Counter(arrival.spec.amounts for batch in batches for arrival in batch.arrivals)
    return [shape for shape, _ in counts.most_common(SHAPES_MAX)]
