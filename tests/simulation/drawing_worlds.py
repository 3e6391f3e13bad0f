"""Draws what only the seeds of one world have: lost feeds, flavors, modes of hosts, power, quotas, shapes, groups that move, guests."""

import random
from collections.abc import Iterable, Iterator
from uuid import UUID

from msgspec import structs

from bus.messages.build import MoveKind
from engine.hosts import HostMode
from engine.inventories import INSTANCES, GroupId, ServerGroup
from laboratory.computes.faults import (
    Changes,
    Dies,
    FailsToReceive,
    FailsToStart,
    FailsToStop,
    FallsSilent,
    StartsSlowly,
    StopsSlowly,
)
from laboratory.computes.hosts import (
    DIRECT_PORTS,
    VIRTUAL_FUNCTIONS,
    SimulatedHost,
    gpu,
    pci_function,
    virtual_functions,
)
from tests.simulation.demands import Demand, Part
from tests.simulation.drawing_demands import BUSY_S, FEATURES, WATTS, deletes_soon
from tests.simulation.drawing_moves import evacuation_after, faults_of_keys, silence_of_a_host, with_moves
from tests.simulation.faults import FOREIGN_OWNERS, Duplicate, Fault, FeedGone, Hostile, Nack
from tests.simulation.plan import (
    CELLS,
    AdminOp,
    Boot,
    EndOfMove,
    Evacuation,
    HostOrder,
    Plan,
    PlannedMove,
    QuotaOrder,
    Switch,
)

EARLY_S = (5.0, 36.0)
# The last time, and how long before the end of it administrators write.
LAST_S, BACK_S = 41.5, (43.5, 44.5)
WRITES = 3
# When the probe is sent: its claim shows what was missed.
PROBE_S = 62.0


def with_lost_feeds(plan: Plan, schedulers: tuple[str, ...], admin: str, chance: random.Random) -> Plan:
    back_s = {name: chance.uniform(*BACK_S) for name in schedulers}
    lost: list[Fault] = [
        *(FeedGone(chance.uniform(*EARLY_S), name, chance.uniform(0.1, 3)) for name in schedulers),
        *(FeedGone(LAST_S, name, until_s - LAST_S) for name, until_s in back_s.items()),
    ]
    first_back_s = min(back_s.values())
    writes = [
        AdminOp(
            chance.uniform(LAST_S + 0.2, first_back_s - 0.2), admin, "set inventory", chance.getrandbits(32)
        )
        for _ in range(WRITES)
    ]
    # A host that changes again and again would show that something was missed.
    calm = tuple(fault for fault in plan.script.faults if not isinstance(fault, Changes))
    *boots, probe = plan.boots
    return structs.replace(
        plan,
        faults=tuple(sorted((*plan.faults, *lost), key=lambda fault: fault.at_s)),
        admin_ops=tuple(sorted((*plan.admin_ops, *writes), key=lambda op: op.at_s)),
        script=structs.replace(plan.script, faults=calm),
        boots=(*boots, structs.replace(probe, at_s=PROBE_S)),
    )


# The share of the plain boots that accept several flavors, and of those that wait for room for any of them.
SHARE_OF_BOOTS, SHARE_WAITING = 0.6, 0.3
# What waits ends at the latest then: after the faults.
WAITS_END_S = 57.0


def with_flavors(plan: Plan, chance: random.Random) -> Plan:
    return structs.replace(plan, boots=tuple(_with_alternatives(boot, chance) for boot in plan.boots))


def _with_alternatives(boot: Boot, chance: random.Random) -> Boot:
    is_plain = boot.name.startswith("b") and not boot.host and boot.vcpus <= 4
    if not is_plain or chance.random() > SHARE_OF_BOOTS:
        return boot
    waits = chance.random() < SHARE_WAITING
    return structs.replace(
        boot,
        vcpus=8,
        needs_gold=True,
        alternatives=((6, boot.ram_mb), (4, 1024)),
        wait_s=int(WAITS_END_S - boot.at_s) if waits else 0,
    )


ORDERS_BEGIN_S = (3.0, 20.0)
# No host has this name.
NOWHERE = "c1-host-nowhere"
# An attempt may last for long: only what a conductor hears of its hosts ends it sooner.
CONDUCTING = {"attempt_timeout_s": 24.0, "destroy_timeout_s": 12.0}


def with_host_modes(plan: Plan, chance: random.Random) -> Plan:
    cut_off, lost, wrong, down = chance.sample([host.name for host in _without_faults(plan)], 4)
    changing = sorted(
        {name for fault in plan.script.faults if isinstance(fault, Changes) for name in fault.hosts}
    )
    cut_s, lost_s = chance.uniform(*ORDERS_BEGIN_S), chance.uniform(*ORDERS_BEGIN_S)
    silent_s = chance.uniform(15, 22)
    faults = (
        FallsSilent(hosts=(cut_off,), after_s=cut_s, for_s=silent_s),
        Dies(hosts=(lost,), after_s=lost_s),
    )
    orders = (
        HostOrder(cut_off, "dead", cut_s + chance.uniform(0.2, 12)),
        # Before it returns, or after that.
        HostOrder(cut_off, "up", cut_s + silent_s + chance.uniform(-3, 6)),
        HostOrder(lost, "dead", lost_s + chance.uniform(0.2, 20)),
        *_there_and_back(wrong, ("dead",), chance),
        *_there_and_back(down, ("down", "draining"), chance),
        *_draining(changing, chance),
        HostOrder(NOWHERE, "down", chance.uniform(*ORDERS_BEGIN_S)),
    )
    return structs.replace(
        plan,
        script=structs.replace(plan.script, faults=(*plan.script.faults, *faults)),
        host_orders=tuple(sorted(orders, key=lambda order: order.at_s)),
        conducting=CONDUCTING,
    )


def _without_faults(plan: Plan) -> list[SimulatedHost]:
    named = {name for fault in plan.script.faults for name in fault.hosts}
    return [host for of_cell in plan.hosts.values() for host in of_cell if host.name not in named]


def _draining(hosts: Iterable[str], chance: random.Random) -> Iterator[HostOrder]:
    """Orders that set these hosts draining for long: meanwhile builds fail on other hosts, with these hosts as their
    alternates.
    """
    for host in hosts:
        yield HostOrder(host, "draining", chance.uniform(6, 14))
        yield HostOrder(host, "up", chance.uniform(34, 40))


def _there_and_back(host: str, modes: tuple[HostMode, ...], chance: random.Random) -> Iterator[HostOrder]:
    at_s = chance.uniform(3, 12)
    both: tuple[HostMode, ...] = (*modes, "up")
    for mode in both:
        yield HostOrder(host, mode, at_s)
        at_s += chance.uniform(0.5, 6)


KINDS: tuple[MoveKind, ...] = (
    *("stop", "stop", "stop", "start", "start", "start", "reboot"),
    *("migrate", "resize"),
)
# How many orders an instance gets, and how long after its boot.
ORDERS = (0, 2, 4, 6)
LATER_S, BUSY_UNTIL_S = 25.0, 38.0
KEYS = ("move.request", "move.", "stop.", "stopped", "start", "receive", "instance.moved", "instance.active")


def with_power(plan: Plan, chance: random.Random) -> Plan:
    faults = (*plan.faults, *faults_of_keys(chance, KEYS, (0.0, 0.5, 6.0)))
    silent = [silence_of_a_host(plan, cell, chance) for cell in plan.hosts]
    return structs.replace(
        plan,
        evacuations=tuple(evacuation_after(each, chance) for each in silent),
        switches=tuple(sorted(_switches(plan, chance), key=lambda each: each.at_s)),
        faults=tuple(sorted(faults, key=lambda each: each.at_s)),
        script=structs.replace(
            plan.script,
            stop_ms=chance.choice((20.0, 300.0)),
            start_ms=chance.choice((20.0, 300.0)),
            faults=(
                *plan.script.faults,
                *silent,
                FailsToStop(probability=0.08),
                FailsToStart(probability=0.2, after_s=chance.uniform(2, 10), for_s=chance.uniform(10, 20)),
                StopsSlowly(stop_ms=3_000.0, probability=0.08),
                StartsSlowly(start_ms=3_000.0, probability=0.08),
            ),
        ),
    )


def _switches(plan: Plan, chance: random.Random) -> Iterator[Switch]:
    for boot in plan.boots:
        for index in range(boot.count):
            for _ in range(chance.choice(ORDERS)):
                yield _switch(boot, index, chance)


def _switch(boot: Boot, index: int, chance: random.Random) -> Switch:
    at_s = min(BUSY_UNTIL_S, boot.at_s + chance.uniform(0.5, LATER_S))
    again_s = (at_s + chance.choice((0.0, 0.5, 6.0)),) if chance.random() < 0.3 else ()
    return Switch(
        UUID(int=chance.getrandbits(128)),
        boot.id,
        index,
        at_s,
        chance.choice(KINDS),
        confirm_s=chance.choice((0, 2)),
        repeated_at_s=again_s,
    )


# The first limit comes before most boots, or while there are many claims.
FIRST_S = (0.0, 6.0)
CHANGED_S = (8.0, 40.0)
CHANGES_MAX = 5
# Of all that the boots ask for.
SHARE = (0.1, 0.6)
# Of the moves, which become resizes to the least or the largest size.
SHARE_RESIZED = 0.6
SIZES = ((1, 1024), (6, 8192))
# Most stay unconfirmed for a while.
QUOTA_ENDS = ((EndOfMove("confirm", 6.0),), (EndOfMove("revert", 6.0),), (EndOfMove("revert", 2.0),), ())


def with_quotas(plan: Plan, chance: random.Random) -> Plan:
    if plan.seed % 80 != 12:
        of_moves = random.Random(f"{plan.seed} moves under quotas")
        plan = with_moves(plan, of_moves)
        plan = structs.replace(plan, moves=tuple([_resized(each, of_moves) for each in plan.moves]))
    return structs.replace(plan, quota_orders=tuple(sorted(_orders(plan, chance), key=lambda one: one.at_s)))


def _resized(move: PlannedMove, chance: random.Random) -> PlannedMove:
    if chance.random() >= SHARE_RESIZED:
        return move
    vcpus, ram_mb = chance.choice(SIZES)
    return structs.replace(
        move,
        kind="resize",
        ends=chance.choice(QUOTA_ENDS),
        vcpus=vcpus,
        ram_mb=ram_mb,
        root_gb=1,
        confirm_s=0,
        unshelved_after_s=None,
    )


def _orders(plan: Plan, chance: random.Random) -> Iterator[QuotaOrder]:
    asked = {
        INSTANCES: sum(boot.count for boot in plan.boots),
        "VCPU": sum(boot.count * boot.vcpus for boot in plan.boots),
        "MEMORY_MB": sum(boot.count * boot.ram_mb for boot in plan.boots),
    }
    first = chance.choice(sorted(asked))
    yield QuotaOrder(chance.uniform(*FIRST_S), {first: int(asked[first] * chance.uniform(*SHARE))})
    for _ in range(chance.randint(1, CHANGES_MAX)):
        name = chance.choice(sorted(asked))
        # A limit may be lowered below what is used, raised, and removed; also the last one.
        limit = None if chance.random() < 0.3 else int(asked[name] * chance.uniform(*SHARE))
        yield QuotaOrder(chance.uniform(*CHANGED_S), {name: limit})


RESHAPED = 4
SHAPES_BEGIN_S = (4.0, 30.0)
SHAPE_KEYS = ("host.reshape", "host.shape.query", "inventory.report")


def with_shapes(plan: Plan, chance: random.Random) -> Plan:
    free = _without_faults(plan)
    changes = [_change(host, chance) for host in chance.sample(free, min(RESHAPED, len(free)))]
    faults = (*plan.faults, *_faults_of_shapes(chance))
    return structs.replace(
        plan,
        script=structs.replace(plan.script, faults=(*plan.script.faults, *changes)),
        faults=tuple(sorted(faults, key=lambda each: each.at_s)),
    )


def _change(host: SimulatedHost, chance: random.Random) -> Changes:
    # Half of them come back to what they were.
    for_s = chance.choice((0.0, chance.uniform(3, 10)))
    cells = 0 if host.size.numa_nodes else 2
    return Changes(hosts=(host.name,), after_s=chance.uniform(*SHAPES_BEGIN_S), for_s=for_s, numa_nodes=cells)


def _faults_of_shapes(chance: random.Random) -> list[Fault]:
    return [
        *[Duplicate(at_s=chance.uniform(*SHAPES_BEGIN_S), key=chance.choice(SHAPE_KEYS)) for _ in range(3)],
        *[Nack(at_s=chance.uniform(*SHAPES_BEGIN_S), key=chance.choice(SHAPE_KEYS)) for _ in range(2)],
    ]


# Two groups in each cell: one on a host that falls silent, one whose members are moved by hand.
SILENT, MOVED = "host-1", "host-3"
MEMBERS = 3
# How often a host cannot take over an instance.
REFUSED = 0.3
MOVED_S = (5.0, 10.0, 15.0, 20.0, 25.0, 31.0)
SILENT_S, SILENT_FOR_S = (9.0, 12.0), (19.0, 24.0)
GROUP_ENDS: tuple[tuple[EndOfMove, ...], ...] = (
    (EndOfMove("abort", 0.1, when_arrived=False),),
    (EndOfMove("abort", 0.6, when_arrived=False),),
    (EndOfMove("revert"),),
    (),
    (),
    (),
)
GROUP_KEYS = ("move.request", "move.", "swap", "stop.", "receive")
# These are booted after the attacks on the ids of what is booted later.
LATER = "later-"
ATTACKED_S, GROUP_LATER_S = (10.0, 16.0), (20.0, 26.0)


def with_group_moves(plan: Plan, chance: random.Random) -> Plan:
    groups: list[ServerGroup] = []
    boots: list[Boot] = []
    moves: list[PlannedMove] = []
    silent: list[FallsSilent] = []
    evacuations: list[Evacuation] = []
    for cell in CELLS:
        for host in (SILENT, MOVED):
            group = ServerGroup(id=GroupId(UUID(int=chance.getrandbits(128))), policy="affinity")
            members = _members(chance, f"{cell}-{host}", group.id)
            groups.append(group)
            boots.append(members)
            if host == MOVED:
                moves += [_move(members, at_s, chance) for at_s in MOVED_S]
        fault = FallsSilent(
            hosts=(f"{cell}-{SILENT}",),
            after_s=chance.uniform(*SILENT_S),
            for_s=chance.uniform(*SILENT_FOR_S),
        )
        silent.append(fault)
        evacuations.append(_evacuation(fault, chance))
        boots.append(_later(chance, cell))
    return structs.replace(
        plan,
        # Claims of attackers know no limit.
        instances_max=0,
        # The last group is deleted at the end.
        groups=(*groups, *plan.groups),
        boots=(*plan.boots, *boots),
        moves=tuple(sorted((*plan.moves, *moves), key=lambda each: each.at_s)),
        evacuations=(*plan.evacuations, *evacuations),
        faults=tuple(sorted((*plan.faults, *_faults_of_groups(chance)), key=lambda each: each.at_s)),
        # So that one of several cannot stay where the first ones went.
        script=structs.replace(
            plan.script, faults=(*plan.script.faults, *silent, FailsToReceive(probability=REFUSED))
        ),
    )


def _members(chance: random.Random, host: str, group: GroupId) -> Boot:
    """Before all others, so that there is room."""
    return Boot(
        id=UUID(int=chance.getrandbits(128)),
        name=f"together-on-{host}",
        at_s=chance.uniform(0.7, 1.0),
        count=MEMBERS,
        vcpus=1,
        ram_mb=1024,
        host=host,
        group=group,
    )


def _later(chance: random.Random, cell: str) -> Boot:
    return Boot(
        id=UUID(int=chance.getrandbits(128)),
        name=f"{LATER}{cell}",
        at_s=chance.uniform(*GROUP_LATER_S),
        count=1,
        vcpus=1,
        ram_mb=1024,
        host=f"{cell}-{MOVED}",
    )


def _move(members: Boot, after_s: float, chance: random.Random) -> PlannedMove:
    return PlannedMove(
        id=UUID(int=chance.getrandbits(128)),
        request=members.id,
        index=chance.randrange(MEMBERS),
        at_s=after_s + chance.uniform(0, 3),
        kind="migrate",
        ends=chance.choice(GROUP_ENDS),
        deadline_s=chance.choice((12, 30)),
        is_repeated=chance.random() < 0.2,
    )


def _evacuation(fault: FallsSilent, chance: random.Random) -> Evacuation:
    at_s = fault.after_s + 10
    return Evacuation(
        id=UUID(int=chance.getrandbits(128)),
        host=fault.hosts[0],
        at_s=at_s,
        until_s=at_s + 13,
    )


def _faults_of_groups(chance: random.Random) -> Iterator[Fault]:
    for key in GROUP_KEYS:
        yield Duplicate(chance.uniform(6, 34), "", key, chance.choice((0.0, 0.3, 6.0)))
        yield Nack(chance.uniform(6, 34), "", key, 1, is_stored=chance.random() < 0.5)
    for content in FOREIGN_OWNERS:
        yield Hostile(chance.uniform(*ATTACKED_S), "", content, "", chance.getrandbits(32))


SHARE_SHAPED = 0.7
NETWORK = "blue"
CARD = "CUSTOM_PCI_8086_10FB"
PAGES = "CUSTOM_MEMORY_MB_PAGES_2048"
DEDICATED = ("hw:cpu_policy", "dedicated")
HUGE = ("hw:mem_page_size", "2048")
NEARNESS = ("required", "legacy", "preferred")
DISK = Part("", (("DISK_GB", 1),))


def with_guests(plan: Plan, chance: random.Random) -> Plan:
    hosts = {
        cell: tuple(_host(host, chance, has_cells=number % 4 != 3) for number, host in enumerate(of_cell))
        for cell, of_cell in plan.hosts.items()
    }
    named = {invalid.id_of for invalid in plan.invalid_requests}
    boots = tuple(boot if boot.id in named else _shaped(boot, chance) for boot in plan.boots)
    bursts = tuple(_bursts(chance))
    counts = {boot.id: boot.count for boot in boots}
    deletes = [each for each in plan.deletes if each.index < counts.get(each.request, 0)]
    return structs.replace(
        plan,
        hosts=hosts,
        boots=tuple(sorted((*boots, *bursts), key=lambda boot: boot.at_s)),
        deletes=(*deletes, *deletes_soon((*boots, *bursts), 0.7, chance)),
    )


def _host(host: SimulatedHost, chance: random.Random, *, has_cells: bool) -> SimulatedHost:
    functions, card = virtual_functions(1, NETWORK), pci_function("8086", "10fb")
    gpus = gpu("nvidia_11", 2), gpu("nvidia_12", 1)
    size = structs.replace(
        host.size,
        numa_nodes=2 if has_cells else 0,
        pcpus=chance.choice((4, 6, 7)),
        pages=((2048, chance.choice((32, 48))),),
        devices=(functions, card, *gpus)[: chance.choice((3, 4))],
    )
    return structs.replace(host, size=size, capabilities={FEATURES: "aes"}, metrics={WATTS: 1_000.0})


def _shaped(boot: Boot, chance: random.Random) -> Boot:
    plain = boot.host or boot.group is not None or boot.at_s < BUSY_S[0] or not boot.name.startswith("b")
    if plain or boot.all_or_nothing or chance.random() > SHARE_SHAPED:
        return boot
    return _with(boot, _demand(chance))


def _with(boot: Boot, demand: Demand) -> Boot:
    return structs.replace(
        boot,
        demand=demand,
        needs_gold=False,
        vcpus=demand.sizes[0],
        ram_mb=demand.sizes[1],
        # Ports are one instance's.
        count=1 if any(part.kind == "port" for part in demand.parts) else min(boot.count, 2),
    )


def _demand(chance: random.Random) -> Demand:
    near = chance.choice(NEARNESS)
    affinity = ("hw:pci_numa_affinity_policy", near)
    kind = chance.choice(("pinned", "pages", "mixed", "two cells", "function", "function", "card", "gpu"))
    pinned = _cell(0, PCPU=2, MEMORY_MB=64)
    parts: tuple[Part, ...]
    guest: tuple[tuple[str, str], ...]
    match kind:
        case "pinned":
            parts, guest, sizes = (pinned,), (DEDICATED,), (2, 64)
        case "pages":
            parts, guest, sizes = (_cell(0, VCPU=1, **{PAGES: 8}),), (("hw:numa_nodes", "1"), HUGE), (1, 8)
        case "mixed":
            mixed = (("hw:cpu_policy", "mixed"), ("hw:cpu_dedicated_mask", "1"))
            guest = (*mixed, ("hw:emulator_threads_policy", "isolate"))
            parts, sizes = (_cell(0, PCPU=2, VCPU=1, MEMORY_MB=64),), (2, 64)
        case "two cells":
            parts = tuple([_cell(number, PCPU=1, **{PAGES: 4}) for number in range(2)])
            guest, sizes = (DEDICATED, HUGE, ("hw:numa_nodes", "2")), (2, 8)
        case "function":
            parts, guest, sizes = (pinned, _function(near)), (DEDICATED, affinity), (2, 64)
        case "card":
            part = Part("_PF", ((CARD, 1),), nearness=near)
            parts, guest, sizes = (pinned, part), (DEDICATED, affinity), (2, 64)
        case _:
            part = Part("_GPU", (("VGPU", 1),), (f"CUSTOM_NVIDIA_1{chance.choice('12')}",), nearness=near)
            parts, guest, sizes = (pinned, part), (DEDICATED, affinity), (2, 64)
    return Demand((DISK, *parts), guest=guest, sizes=sizes)


def _cell(number: int, **amounts: int) -> Part:
    return Part(f"guest cell {number}", tuple(sorted(amounts.items())), kind="cell")


def _function(near: str) -> Part:
    return Part(
        "port-1",
        ((VIRTUAL_FUNCTIONS, 1),),
        (DIRECT_PORTS,),
        kind="port",
        physical_network=NETWORK,
        nearness=near,
    )


def _bursts(chance: random.Random) -> Iterator[Boot]:
    """Several boots of one kind at the same moment: schedulers choose the same functions and processors, and are refused some."""
    card = Demand(
        (DISK, _cell(0, PCPU=1, MEMORY_MB=8), Part("_PF", ((CARD, 1),), nearness="legacy")),
        guest=(DEDICATED,),
        sizes=(1, 8),
    )
    function = Demand(
        (DISK, _cell(0, PCPU=1, MEMORY_MB=8), _function("required")),
        guest=(DEDICATED, ("hw:pci_numa_affinity_policy", "required")),
        sizes=(1, 8),
    )
    for burst in range(6):
        at_s = chance.uniform(*BUSY_S)
        for each in range(5):
            boot = Boot(
                id=UUID(int=chance.getrandbits(128)),
                name=f"g{burst}-{each}",
                at_s=at_s + each * 0.001,
                count=1,
                vcpus=1,
                ram_mb=8,
            )
            yield _with(boot, card if each == burst % 2 else function)
