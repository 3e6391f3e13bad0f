"""Draws what each seed without bare metal has: hosts, boots, administrators, faults of every kind."""

import math
import random
from collections.abc import Iterator
from functools import partial
from uuid import UUID

from msgspec import structs

from engine.inventories import HARD_POLICIES, GroupId, GroupPolicy, ServerGroup
from laboratory.computes.faults import (
    BuildsSlowly,
    Changes,
    ComesBackLate,
    Dies,
    FailsToBuild,
    FallsSilent,
    FaultScript,
)
from laboratory.computes.hosts import HostSize, SimulatedHost
from tests.simulation.admins import EVERY_ACTION
from tests.simulation.faults import (
    BROKEN_BODIES,
    CURSED,
    FORGERIES,
    IN_OUTBOX,
    ON_THE_WAY,
    OUTAGES,
    POINTS,
    BrokerRestart,
    CellDown,
    ClockJump,
    Crash,
    CrashAt,
    Cut,
    DatabaseAway,
    Deadlock,
    Duplicate,
    Fault,
    FeedDrop,
    Hostile,
    LateConfirms,
    LateRedelivery,
    LostAtCommit,
    LostConfirm,
    LostPublish,
    Nack,
    QueueGone,
    Reorder,
    RoleDown,
    SerialisationFailure,
    Unroutable,
    Zombie,
)
from tests.simulation.intruders import MESSAGE_TYPES, QUESTION_TYPES
from tests.simulation.plan import (
    CELLS,
    GOLD,
    RATIOS,
    AdminOp,
    Boot,
    Delete,
    DisabledHost,
    InvalidRequest,
    Plan,
    boot_on,
)

INSTANCES = 100
# One seed in so many has server groups. Other seeds stay as they were drawn before there were groups.
GROUPS_EVERY = 10
# One in so many has pools of disk, and hosts that build one instance after the other. Hosts in pools have no disk of their own.
POOLS_EVERY, POOLS_AT = 20, 9
# These have requests that are built whole or not at all.
WHOLE_EVERY, WHOLE_AT = 20, 16
# One seed in so many has the outage of a cell, which is soon known, and over before the faults stop.
OUTAGES_EVERY = 20
OUTAGE_S, OUTAGE_FOR_S = (5.0, 12.0), (22.0, 26.0)
BEAT_S, CELL_DOWN_S = 1.0, 6.0
SOURCES = ("", "debian", "fedora")
# One seed in so many has boots that wait for room.
WAITS_EVERY, WAITS_AT = 20, 14
# In some of these schedulers die between the commit of a timer and its messages.
DYING_EVERY, DYING_AT = 40, 14
# When what waits ends at the latest: after the faults, so that nothing but a lost wake-up keeps it from room.
WAITS_END_S = 57.0
# When the instance that fills a host is deleted: under faults, and after them.
FREED_S = (14.0, 26.0, 46.5)
METRICS = {"temperature": 21.0}
POLICIES: tuple[tuple[GroupPolicy, int], ...] = (
    ("anti-affinity", 1),
    ("anti-affinity", 2),
    ("affinity", 1),
    ("affinity", 1),
    ("soft-affinity", 1),
    ("soft-anti-affinity", 1),
)
HOSTS_PER_CELL = 6
# The numbers of hosts whose CPUs and memory are in NUMA nodes.
NESTED = (2, 5)
SIZE = HostSize(vcpus=16, ram_mb=65_536, disk_gb=1_000, vcpu_ratio=1.0)
BUSY_S = (1.0, 34.0)
API, PLACEMENT = ("scheduler-1", "scheduler-2"), ("placement-1", "placement-2")
CONDUCTORS = tuple(f"conductor-{cell}-{n}" for cell in CELLS for n in (1, 2))
COMPUTES = tuple(f"compute-{cell}" for cell in CELLS)
WORKERS = (*API, *PLACEMENT, *CONDUCTORS)
HTTP_ADMIN = "http-1"
ADMINS = ("admin-1", "admin-2", HTTP_ADMIN)
ADMIN_OPS = 60
ADMIN_OPS_S = (2.0, 42.0)
KEYS = (
    "build.request",
    "claim",
    "swap",
    "release",
    "place",
    "spawn",
    "spawned",
    "destroy",
    "instance.",
    "host.state",
)
KEYS_OF_ADMINS = ("provider.", "inventory.", "traits.", "allocations.set", "allocations.set", "reshape")
KEYS_NACKED = (
    *("build.request", "instance.delete", "claim", "swap", "release", "place", "spawn", "spawned", "destroy"),
    *("inventory.report", "snapshot", "instance.", "host.state", "providers.changed", "allocations.set"),
)
KEYS_OF_ORDERS = (
    *(
        "build.request",
        "instance.delete",
        "claim",
        "swap",
        "release",
        "place.",
        "placement.",
        "remove",
        "spawn",
        "destroy",
    ),
    *("spawned", "inventory.report", "provider.", "allocations.set"),
)
QUEUES_OF_QUESTIONS = ("placement.claims", "placement.searches", "placement.questions", "scheduler.questions")
QUEUES = {
    "scheduler": ("scheduler.requests", "scheduler.events"),
    "placement": ("placement.work", "placement.claims", "placement.questions"),
    "conductor": (".work",),
}


def draw_cloud(seed: int) -> Plan:
    chance = random.Random(seed)
    sizes_chance = random.Random(f"{seed} sizes")
    hosts = {cell: _hosts(chance, sizes_chance, cell) for cell in CELLS}
    late = {cell: (of_cell[-1].name, chance.uniform(6, 25)) for cell, of_cell in hosts.items()}
    groups, members = _groups(random.Random(f"{seed} groups")) if seed % GROUPS_EVERY == 0 else ((), ())
    is_whole = seed % WHOLE_EVERY == WHOLE_AT
    dies_in_outbox = seed % DYING_EVERY == DYING_AT
    if groups:
        # Hosts with metrics say them on the bus now and then.
        hosts = {
            cell: tuple(structs.replace(host, metrics=METRICS) for host in each)
            for cell, each in hosts.items()
        }
    waits, frees = _waits(random.Random(f"{seed} waits")) if seed % WAITS_EVERY == WAITS_AT else ((), ())
    boots = (
        *waits,
        *members,
        *(_whole_boots(random.Random(f"{seed} whole")) if is_whole else ()),
        *_boots(chance),
        *(boot_on(chance, f"on-{host}", at_s, host) for host, at_s in late.values()),
        # Before all others: its claim is delivered again after the instance is deleted and placement has pruned it.
        boot_on(random.Random(f"{seed} early"), "early", BUSY_S[0] - 0.1),
        # After the faults have stopped: it is active soon, and its changes show which process missed earlier ones.
        boot_on(chance, "probe", 50.0),
    )
    if seed % POOLS_EVERY == POOLS_AT:
        # There schedulers prefer hosts that have the image.
        images = random.Random(f"{seed} images")
        boots = tuple([structs.replace(each, image=images.choice(SOURCES)) for each in boots])
    names = [host.name for of_cell in hosts.values() for host in of_cell]
    # A random generator of its own: other operations of administrators leave the rest of the plan as it is. The word in
    # its seed has no meaning; another word would draw other plans for all kept seeds.
    admins_chance = random.Random(f"{seed} clerks")
    return Plan(
        seed=seed,
        instances_max=_instances_max(random.Random(f"{seed} limit")),
        hosts=hosts,
        pools=_pools(random.Random(f"{seed} pools")) if seed % POOLS_EVERY == POOLS_AT else (),
        builds_at_once_max=int(seed % POOLS_EVERY == POOLS_AT),
        groups=groups,
        script=_script(chance, names, dict(late.values())),
        boots=boots,
        deletes=(
            *frees,
            *_deletes(chance, tuple(boot for boot in boots[len(waits) :] if not boot.all_or_nothing)),
            *_deletes_of_whole(random.Random(f"{seed} whole deletes"), boots),
            Delete(boots[-2].id, 0, boots[-2].at_s + 1.5),
        ),
        disabled_hosts=tuple(_switch(chance, names) for _ in range(2)),
        invalid_requests=(InvalidRequest(chance.uniform(*BUSY_S), None), InvalidRequest(36.0, boots[0].id)),
        faults=tuple(
            sorted(
                (
                    *_faults(chance),
                    *_faults_of_admins(admins_chance),
                    *_faults_of_publishing(random.Random(f"{seed} publishing")),
                    *_faults_of_databases(random.Random(f"{seed} databases")),
                    *_faults_of_intruders(random.Random(f"{seed} intruders")),
                    *(_faults_of_whole(random.Random(f"{seed} claims")) if is_whole else ()),
                    *(_faults_of_outboxes(random.Random(f"{seed} outboxes")) if dies_in_outbox else ()),
                ),
                key=lambda fault: fault.at_s,
            )
        ),
        admin_ops=(*_admin_ops(admins_chance), *_simultaneous_ops(random.Random(f"{seed} together"))),
    )


def with_outage(plan: Plan, chance: random.Random) -> Plan:
    """The plan with the outage of a cell. The kinds of outages take turns, so that few seeds have all of them."""
    outage = CellDown(
        chance.uniform(*OUTAGE_S),
        "",
        chance.choice(CELLS),
        OUTAGES[plan.seed // OUTAGES_EVERY % len(OUTAGES)],
        chance.uniform(*OUTAGE_FOR_S),
    )
    faults = sorted((*plan.faults, outage), key=lambda fault: fault.at_s)
    return structs.replace(
        plan,
        faults=tuple(faults),
        pace={"beat_s": BEAT_S},
        settings={"cell_down_s": CELL_DOWN_S},
    )


def _pools(chance: random.Random) -> tuple[str, ...]:
    """Some hosts of a cell share a pool, perhaps one that runs out; one host may take from either of two."""
    return (
        f"disks:DISK_GB={chance.choice((8, 15, 40))}@*-host-[1-4]",
        f"spare:DISK_GB={chance.choice((4, 10))}@*-host-4",
    )


def _instances_max(chance: random.Random) -> int:
    """One seed in three has a limit, near the number of instances that fit on a host."""
    return chance.randint(4, 7) if chance.random() < 1 / 3 else 0


def _hosts(chance: random.Random, sizes_chance: random.Random, cell: str) -> tuple[SimulatedHost, ...]:
    plain = SIZE.traits
    return tuple(
        SimulatedHost(
            name=f"{cell}-host-{n}",
            size=structs.replace(
                _size(sizes_chance),
                traits=plain | {GOLD} if chance.random() < 0.5 else plain,
                numa_nodes=2 if n in NESTED else 0,
            ),
        )
        for n in range(1, HOSTS_PER_CELL + 1)
    )


def _size(chance: random.Random) -> HostSize:
    """A host with the capacity of SIZE, reached by different ratios and reserves: the real amount differs from the capacity."""
    vcpu_ratio, ram_ratio, disk_ratio = (
        chance.choice(RATIOS),
        chance.choice(RATIOS[:3]),
        chance.choice(RATIOS),
    )
    vcpus_reserved, ram_mb_reserved = chance.choice((0, 0, 1, 4)), chance.choice((0, 512, 4_096))
    return structs.replace(
        SIZE,
        vcpus=math.ceil(SIZE.vcpus / vcpu_ratio) + vcpus_reserved,
        vcpus_reserved=vcpus_reserved,
        vcpu_ratio=vcpu_ratio,
        ram_mb=math.ceil(SIZE.ram_mb / ram_ratio) + ram_mb_reserved,
        ram_mb_reserved=ram_mb_reserved,
        ram_ratio=ram_ratio,
        disk_gb=math.ceil(SIZE.disk_gb / disk_ratio),
        disk_gb_reserved=chance.choice((0, 5)),
        disk_ratio=disk_ratio,
    )


def _boots(chance: random.Random) -> tuple[Boot, ...]:
    boots: list[Boot] = []
    while sum(boot.count for boot in boots) < INSTANCES:
        at_s = chance.uniform(*BUSY_S)
        oversized = chance.random() < 0.04
        boots.append(
            Boot(
                id=UUID(int=chance.getrandbits(128)),
                name=f"b{len(boots) + 1}",
                at_s=at_s,
                count=chance.choice((1, 1, 1, 2, 3)),
                vcpus=40 if oversized else chance.choice((1, 2, 2, 4)),
                ram_mb=chance.choice((1024, 4096)),
                repeated_at_s=tuple(at_s + chance.uniform(0, 20) for _ in range(chance.random() < 0.15)),
                needs_gold=chance.random() < 0.2,
                deadline_s=12 if chance.random() < 0.05 else 30,
            )
        )
    return tuple(sorted(boots, key=lambda boot: boot.at_s))


def _groups(chance: random.Random) -> tuple[tuple[ServerGroup, ...], tuple[Boot, ...]]:
    """Groups, and boots of their members: several at the same moment, so that schedulers choose for one group at once."""
    groups = tuple(
        ServerGroup(id=GroupId(UUID(int=chance.getrandbits(128))), policy=policy, max_per_host=max_per_host)
        for policy, max_per_host in POLICIES
    )
    boots = [
        Boot(
            id=UUID(int=chance.getrandbits(128)),
            name=f"g{number}-{burst}-{each}",
            at_s=at_s,
            count=chance.choice((1, 1, 2)),
            vcpus=1,
            ram_mb=1024,
            repeated_at_s=tuple(at_s + chance.uniform(0, 20) for _ in range(chance.random() < 0.15)),
            group=group.id,
        )
        for number, group in enumerate(groups)
        for burst in range(2)
        for at_s in (chance.uniform(*BUSY_S),)
        for each in range(4 if group.policy in HARD_POLICIES else 2)
    ]
    return groups, tuple(boots)


def _whole_boots(chance: random.Random) -> tuple[Boot, ...]:
    """Boots that are built whole or not at all. There are pairs at the same moment, so that schedulers claim the same
    hosts, and one for which there is never room.
    """
    boots = [
        Boot(
            id=UUID(int=chance.getrandbits(128)),
            name=f"whole-{pair}-{each}",
            at_s=at_s,
            count=chance.choice((3, 5, 8, 12)),
            vcpus=chance.choice((1, 1, 2)),
            ram_mb=1024,
            repeated_at_s=tuple(at_s + chance.uniform(0, 20) for _ in range(chance.random() < 0.3)),
            deadline_s=chance.choice((5, 12, 30, 30)),
            all_or_nothing=True,
        )
        for pair in range(4)
        for at_s in (chance.uniform(*BUSY_S),)
        for each in range(2)
    ]
    too_many = structs.replace(
        boots[0], id=UUID(int=chance.getrandbits(128)), name="too-many", count=30, vcpus=8
    )
    return (*boots, structs.replace(too_many, at_s=chance.uniform(*BUSY_S), repeated_at_s=(), deadline_s=30))


def _deletes_of_whole(chance: random.Random, boots: tuple[Boot, ...]) -> Iterator[Delete]:
    """Deletes of one instance of some of the boots that are built whole or not at all, about when all instances are placed."""
    for boot in boots:
        if boot.all_or_nothing and chance.random() < 1 / 3:
            after_s = chance.choice((-0.2, 0.0, 0.01, 0.05, 0.2, 3.0))
            yield Delete(boot.id, chance.randrange(boot.count), max(0.6, boot.at_s + after_s))


def _faults_of_whole(chance: random.Random) -> list[Fault]:
    """Faults of the claims of boots that are built whole or not at all: a claim comes twice, late, or not at all."""
    at_s = partial(chance.uniform, *BUSY_S)
    return [
        *(Duplicate(at_s(), "", "claims", chance.choice((0.0, 0.1, 1.0, 8.0))) for _ in range(4)),
        *(Nack(at_s(), "", "claims", 1, is_stored=is_stored) for is_stored in (True, False)),
    ]


def _faults_of_outboxes(chance: random.Random) -> Iterator[Fault]:
    for who in API:
        for _ in range(3):
            yield CrashAt(chance.uniform(5, 40), who, IN_OUTBOX, chance.uniform(0.1, 1))


def _waits(chance: random.Random) -> tuple[tuple[Boot, ...], tuple[Delete, ...]]:
    """Hosts that one instance fills, and boots that wait for them, of which each needs the whole host; and the deletes
    that free the hosts.
    """
    boots: list[Boot] = []
    frees: list[Delete] = []
    for number, freed_s in enumerate(FREED_S):
        host = f"{CELLS[number % len(CELLS)]}-host-{chance.choice((1, 3, 4))}"
        full = Boot(
            id=UUID(int=chance.getrandbits(128)),
            name=f"full-{number}",
            at_s=BUSY_S[0] + chance.uniform(0, 1),
            count=1,
            vcpus=SIZE.vcpus,
            ram_mb=1024,
            host=host,
        )
        boots.append(full)
        frees.append(Delete(full.id, 0, freed_s))
        for each in range(3):
            at_s = chance.uniform(6, freed_s - 4)
            waits = Boot(
                id=UUID(int=chance.getrandbits(128)),
                name=f"waits-{number}-{each}",
                at_s=at_s,
                count=chance.choice((1, 1, 2)),
                vcpus=SIZE.vcpus,
                ram_mb=1024,
                repeated_at_s=tuple(at_s + chance.uniform(0, 20) for _ in range(chance.random() < 0.3)),
                host=host,
                wait_s=round(WAITS_END_S - at_s),
                priority=chance.choice((0, 0, 5)),
            )
            boots.append(waits)
            if each == 0:
                frees.append(Delete(waits.id, 0, chance.uniform(at_s, 40)))
    return tuple(boots), tuple(frees)


def _deletes(chance: random.Random, boots: tuple[Boot, ...]) -> tuple[Delete, ...]:
    """Deletes of some instances: before the request, at the same time, while the instance is placed or built, and
    long after.
    """
    deletes = []
    for boot in boots[:-1]:
        for index in range(boot.count):
            if chance.random() < 0.35:
                after_s = chance.choice((-0.5, 0.0, 0.01, 0.05, 0.2, 1.0, 3.0, 8.0)) * chance.uniform(
                    0.5, 1.5
                )
                times = [max(0.6, boot.at_s + after_s)]
                if chance.random() < 0.2:
                    times.append(times[0] + chance.uniform(0, 6))
                deletes += [Delete(boot.id, index, at_s) for at_s in times]
    return tuple(deletes)


def _switch(chance: random.Random, names: list[str]) -> DisabledHost:
    at_s = chance.uniform(*BUSY_S)
    return DisabledHost(chance.choice(names), at_s, at_s + chance.uniform(1, 10))


def _script(chance: random.Random, names: list[str], late: dict[str, float]) -> FaultScript:
    """The faults of hosts. A host that is silent from the beginning (`late`) counts as added once it reports."""
    there = [name for name in names if name not in late]
    silent, later, dying, shrinking, losing, bare = chance.sample(there, 6)
    at_s = [chance.uniform(*BUSY_S) for _ in range(6)]
    return FaultScript(
        seed=chance.getrandbits(32),
        spawn_ms=chance.choice((20.0, 200.0, 800.0)),
        faults=(
            *(FallsSilent(hosts=(name,), for_s=until_s) for name, until_s in late.items()),
            FailsToBuild(probability=0.1),
            BuildsSlowly(spawn_ms=chance.choice((2_000.0, 8_000.0)), probability=0.05),
            FallsSilent(hosts=(silent,), after_s=at_s[0], for_s=chance.uniform(3, 12)),
            ComesBackLate(hosts=(later,), after_s=at_s[1], for_s=chance.uniform(3, 12)),
            *((Dies(hosts=(dying,), after_s=at_s[2]),) if chance.random() < 0.5 else ()),
            Changes(hosts=(shrinking,), after_s=at_s[3], for_s=5, vcpus=-8),
            Changes(hosts=(losing,), after_s=at_s[4], for_s=3, every_s=6, traits_gained=("CUSTOM_TINKERED",)),
            Changes(hosts=(losing,), after_s=at_s[5], for_s=6, traits_lost=(GOLD,)),
            Changes(hosts=(bare,), after_s=at_s[5], for_s=4, disk_gb=-1_000),
        ),
    )


def _under_faults_s(chance: random.Random) -> float:
    return chance.uniform(*BUSY_S) + 1


def _faults(chance: random.Random) -> list[Fault]:
    at_s = partial(_under_faults_s, chance)
    worker = partial(chance.choice, WORKERS)
    anyone = partial(chance.choice, (*WORKERS, *COMPUTES, "client"))
    faults: list[Fault] = [
        *(Crash(at_s(), chance.choice((*WORKERS, *COMPUTES)), chance.uniform(0.1, 3)) for _ in range(4)),
        *(
            CrashAt(at_s(), who, point, chance.uniform(0.1, 2), chance.choice((0.0, 0.5, 2.0)))
            for point, who in (
                *((point, worker()) for point in (*POINTS, "before_ack")),
                *(("after_commit", chance.choice(CONDUCTORS)) for _ in range(3)),
            )
        ),
        *(Zombie(at_s(), worker(), chance.uniform(0.1, 3), chance.uniform(2, 6)) for _ in range(2)),
        *(Cut(at_s(), anyone()) for _ in range(3)),
        *(LostConfirm(at_s(), anyone()) for _ in range(4)),
        *(Duplicate(at_s(), "", key, chance.choice((0.0, 0.1, 1.0, 8.0))) for key in KEYS),
        *(LateRedelivery(at_s(), worker(), chance.uniform(0.2, 3)) for _ in range(2)),
        *(
            Reorder(at_s(), who, chance.choice(QUEUES[who.partition("-")[0]]), chance.uniform(0.2, 3))
            for who in (worker(), worker(), *PLACEMENT, chance.choice(CONDUCTORS))
        ),
        *(ClockJump(at_s(), worker(), chance.uniform(-4, 4)) for _ in range(3)),
        *(FeedDrop(at_s(), chance.choice(API), chance.choice((1, 1, 3))) for _ in range(3)),
        RoleDown(at_s(), "", "scheduler", chance.uniform(1, 5)),
        RoleDown(at_s(), "", "placement", chance.uniform(1, 5)),
    ]
    if chance.random() < 0.3:
        faults.append(BrokerRestart(at_s()))
    return faults


def _faults_of_publishing(chance: random.Random) -> list[Fault]:
    """Faults of publishing: parcels that never arrive, are refused, or are confirmed late; and queues that are gone."""

    at_s = partial(_under_faults_s, chance)
    anyone = partial(chance.choice, (*WORKERS, *COMPUTES, *CONDUCTORS, "client", *ADMINS[:2]))
    return [
        *(LostPublish(at_s(), anyone()) for _ in range(5)),
        *(
            CrashAt(at_s(), who, ON_THE_WAY, chance.uniform(0.1, 1), chance.choice((0.0, 0.0, 2.0)))
            for who in (chance.choice(API), chance.choice(PLACEMENT), *CONDUCTORS, chance.choice(CONDUCTORS))
        ),
        *(LateConfirms(at_s(), anyone(), chance.uniform(1, 7), chance.choice((1, 3, 10))) for _ in range(4)),
        *(
            Nack(at_s(), "", chance.choice(KEYS_NACKED), chance.choice((1, 2, 5)), is_stored=is_stored)
            for is_stored in (False, False, False, True)
        ),
        *(Unroutable(at_s(), "", chance.choice(KEYS_OF_ORDERS), chance.uniform(0.1, 1.5)) for _ in range(2)),
        QueueGone(at_s(), "", chance.choice(QUEUES_OF_QUESTIONS), chance.uniform(0.1, 1.5)),
    ]


def _faults_of_databases(chance: random.Random) -> list[Fault]:
    """One fault of each kind for the database of each role."""

    at_s = partial(_under_faults_s, chance)
    faults: list[Fault] = []
    for names_of_role in (API, PLACEMENT, CONDUCTORS, (HTTP_ADMIN,)):
        faults += [
            Deadlock(at_s(), chance.choice(names_of_role)),
            SerialisationFailure(at_s(), chance.choice(names_of_role)),
            LostAtCommit(at_s(), chance.choice(names_of_role), is_done=False),
            LostAtCommit(at_s(), chance.choice(names_of_role), is_done=True),
            DatabaseAway(at_s(), chance.choice(names_of_role), chance.uniform(0.2, 3)),
        ]
    return faults


def _faults_of_intruders(chance: random.Random) -> list[Fault]:
    """The attacks of intruders: each kind of broken bytes and each forgery once, and answers that are delivered again
    later.
    """
    at_s = partial(chance.uniform, 4.0, 38.0)
    seed_of_attack = partial(chance.getrandbits, 32)
    return [
        *(
            Hostile(at_s(), "", content, chance.choice(MESSAGE_TYPES), seed_of_attack())
            for content in BROKEN_BODIES[:-1]
        ),
        Hostile(at_s(), "", BROKEN_BODIES[-1], chance.choice(QUESTION_TYPES), seed_of_attack()),
        *(Hostile(at_s(), "", content, "", seed_of_attack()) for content in FORGERIES),
        Hostile(chance.uniform(2, 8), "", CURSED, "", seed_of_attack()),
        Duplicate(BUSY_S[0] - 0.15, "", "claim", 42.0),
        *(Duplicate(at_s(), "", "answers.", chance.choice((0.1, 1.0, 5.0))) for _ in range(6)),
    ]


def _admin_ops(chance: random.Random) -> tuple[AdminOp, ...]:
    """The administrators' operations. Some begin at the same time, so that they arrive in one batch."""
    admin_ops = []
    at_s = ADMIN_OPS_S[0]
    for _ in range(ADMIN_OPS):
        if chance.random() < 0.7:
            at_s = chance.uniform(*ADMIN_OPS_S)
        admin_ops.append(
            AdminOp(at_s, chance.choice(ADMINS), chance.choice(EVERY_ACTION), chance.getrandbits(32))
        )
    return tuple(sorted(admin_ops, key=lambda op: op.at_s))


def _simultaneous_ops(chance: random.Random) -> Iterator[AdminOp]:
    """Pairs of reshapes that are to arrive in one batch over the bus."""
    for _ in range(3):
        at_s = chance.uniform(*ADMIN_OPS_S)
        yield AdminOp(at_s, chance.choice(ADMINS[:2]), "reshape two", chance.getrandbits(32))


def _faults_of_admins(chance: random.Random) -> list[Fault]:
    at_s = partial(chance.uniform, *ADMIN_OPS_S)
    return [
        *(Duplicate(at_s(), "", key, chance.choice((0.0, 0.1, 1.0, 8.0))) for key in KEYS_OF_ADMINS),
        *(Cut(at_s(), admin) for admin in ADMINS[:2]),
        *(LostConfirm(at_s(), admin) for admin in ADMINS[:2]),
        *(
            CrashAt(at_s(), who, point, chance.uniform(0.1, 1))
            for point in ("before_commit", "after_commit")
            for who in (HTTP_ADMIN, chance.choice(PLACEMENT))
        ),
        Crash(at_s(), HTTP_ADMIN, chance.uniform(0.1, 2)),
        # A conductor dies after it has committed a decision and before it has published it: its next message must not
        # lose it.
        *(
            CrashAt(at_s(), who, "after_commit", chance.uniform(0.1, 1), 2.0)
            for who in (chance.choice(CONDUCTORS), chance.choice(CONDUCTORS))
        ),
    ]
