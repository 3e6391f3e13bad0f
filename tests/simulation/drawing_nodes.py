"""Draws a plan of bare metal from a seed: nodes, their Ironic, daemons, and faults."""

import random
from collections.abc import Iterator
from functools import partial
from uuid import UUID

from msgspec import structs

from laboratory.computes.faults import FaultScript
from laboratory.ironic import IronicScript, SimulatedNode, available_nodes
from laboratory.ironic.node import NO_NETWORK
from laboratory.ironic.script import Delays, Doubles, Loses, NodeLocked, WorkFails
from tests.simulation.faults import (
    BrokerRestart,
    ClockJump,
    Crash,
    CrashAt,
    Cut,
    DatabaseAway,
    Deadlock,
    Drain,
    Duplicate,
    Fault,
    FeedDrop,
    IronicAway,
    LateConfirms,
    LateRedelivery,
    Leave,
    LostAnswer,
    LostAtCommit,
    LostConfirm,
    LostPublish,
    Nack,
    Pause,
    Reorder,
    RoleDown,
    SerialisationFailure,
    Zombie,
)
from tests.simulation.ironic import CLASSES
from tests.simulation.plan import CELLS, GROUPS_OF_NODES, Boot, Delete, Flip, Plan, Rebuild

# Seeds from here on are of bare metal.
NODE_SEEDS = 1_000_000_000
NODES = 32
FLIPS = 1_000
INSTANCES = 80
BUSY_S = (3.0, 40.0)
PORTS_S = 24.0
# One seed in so many has nodes that are deleted although they have an instance: of so many, those that have one.
VANISHING_EVERY, VANISHING_AT = 10, 2
VANISHING = 12
VANISHING_S = (15.0, 43.0)
# In one seed in so many, late requests put instances that are over on nodes which had them.
LATE_EVERY, LATE_AT, LATE_S = 10, 5, (10.0, 43.0)
# In one seed in so many all nodes are compared only this often, and operators set maintenance of so many nodes. They do that
# after the faults: each gap that a fault leaves has all nodes compared.
RARE_SWEEPS_EVERY, RARE_SWEEPS_AT = 10, 3
SELDOM_S = 300.0
MAINTAINED, MAINTAINED_S = 8, (50.0, 52.0)
# Three start at the beginning, and the last one joins later.
DAEMONS = ("ironic-1", "ironic-2", "ironic-3", "ironic-4")
OTHERS = (
    *("scheduler-1", "scheduler-2", "placement-1", "placement-2"),
    *(f"conductor-{cell}-{n}" for cell in CELLS for n in (1, 2)),
)
# Sequences of changes to one node; the number before each sets how often it is drawn.
EPISODES = (
    *((8, ("maintain", "maintain")),),
    *((8, ("provision", "provision")),),
    (1, ("provision", "retire", "retire", "provision")),
    (2, ("power",)),
    (1, ("bmc", "bmc")),
    (2, ("traits",)),
    (1, ("class",)),
    (1, ("provision", "class", "provision")),
    (1, ("move",)),
    (2, ("occupy", "occupy")),
    (1, ("allocate", "allocate")),
    (1, ("delete", "delete", "provision")),
    (6, ("heal", "heal")),
)
EVERY_EPISODE = tuple(actions for often, actions in EPISODES for _ in range(often))
KEYS = (
    "inventory.report",
    "claim",
    "release",
    "place.",
    "swap",
    "host.",
    "deploy",
    "undeploy",
    "spawned",
    "destroyed",
)
KEYS_OF_REBUILDS = ("instance.rebuild", "rebuild.", "redeploy.", "redeployed.")
POINTS = ("before_commit", "after_commit", "before_ack", "on_the_way", "in_timer")


def draw_nodes(seed: int) -> Plan:
    chance = random.Random(f"{seed} nodes")
    nodes = _with_networks(random.Random(f"{seed} networks"), _nodes(random.Random(f"{seed} metal")))
    boots = _with_ports(random.Random(f"{seed} ports"), _boots(random.Random(f"{seed} boots")))
    # A random generator of its own: other rebuilds leave the rest of the plan as it is.
    of_rebuilds = random.Random(f"{seed} rebuilds")
    faults = (*_faults(chance), *_faults_of_rebuilds(of_rebuilds))
    flips = _flips(random.Random(f"{seed} flips"), nodes)
    if seed % LATE_EVERY == LATE_AT:
        late = _arriving_late(random.Random(f"{seed} late"), nodes)
        flips = tuple(sorted((*flips, *late), key=lambda flip: flip.at_s))
    if has_vanishing_nodes(seed):
        vanishing = _vanishing(random.Random(f"{seed} vanishing"), nodes)
        flips = tuple(sorted((*flips, *vanishing), key=lambda flip: flip.at_s))
    plan = Plan(
        seed=seed,
        hosts=dict.fromkeys(CELLS, ()),
        script=FaultScript(seed=seed),
        boots=boots,
        deletes=_deletes(random.Random(f"{seed} deletes"), boots),
        rebuilds=_rebuilds(of_rebuilds, boots),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        nodes=nodes,
        flips=flips,
        ironic=_script(random.Random(f"{seed} script")),
        daemons=dict(zip(DAEMONS, (0.0, 0.0, 0.0, chance.uniform(5, 30)), strict=True)),
        settle_s_max=80.0,
    )
    return _with_rare_sweeps(plan, random.Random(f"{seed} rare sweeps")) if has_rare_sweeps(seed) else plan


def has_rare_sweeps(seed: int) -> bool:
    return seed % RARE_SWEEPS_EVERY == RARE_SWEEPS_AT


def _with_rare_sweeps(plan: Plan, chance: random.Random) -> Plan:
    """The plan with daemons that compare all nodes as seldom as real ones, and with maintenance of which they hear nothing:
    only a look at the nodes that changed lately finds it. It cannot find a deleted node, so none is deleted.
    """
    flips = [
        *(flip for flip in plan.flips if flip.action != "delete"),
        *(
            # An odd seed: by Ironic's own order to set it, and not by a patch.
            Flip(chance.uniform(*MAINTAINED_S), str(node.name), "maintain", 1)
            for node in chance.sample(plan.nodes, MAINTAINED)
        ),
    ]
    unheard = Loses(event_types=("baremetal.node.maintenance_set.*",), probability=1.0)
    return structs.replace(
        plan,
        syncing={"sweep_s": SELDOM_S},
        flips=tuple(sorted(flips, key=lambda flip: flip.at_s)),
        ironic=structs.replace(plan.ironic, faults=(unheard, *plan.ironic.faults)),
    )


def has_vanishing_nodes(seed: int) -> bool:
    return seed % VANISHING_EVERY == VANISHING_AT


def _vanishing(chance: random.Random, nodes: tuple[SimulatedNode, ...]) -> Iterator[Flip]:
    """Deletes of nodes with instances. Those that have none then stay."""
    for node in chance.sample(nodes, VANISHING):
        yield Flip(chance.uniform(*VANISHING_S), str(node.name), "vanish", 0)


def _arriving_late(chance: random.Random, nodes: tuple[SimulatedNode, ...]) -> Iterator[Flip]:
    for node in nodes:
        yield Flip(chance.uniform(*LATE_S), str(node.name), "arrive", chance.getrandbits(15))


def _nodes(chance: random.Random) -> tuple[SimulatedNode, ...]:
    nodes: list[SimulatedNode] = []
    for group in GROUPS_OF_NODES:
        for resource_class in CLASSES:
            nodes += available_nodes(
                NODES // len(GROUPS_OF_NODES) // len(CLASSES),
                resource_class=resource_class,
                name=f"{group}-{resource_class}",
                conductor_group=group,
                driver=chance.choice(("fake-hardware", "fake-hardware")),
            )
    return tuple(nodes)


def _with_networks(chance: random.Random, nodes: tuple[SimulatedNode, ...]) -> tuple[SimulatedNode, ...]:
    """The nodes, of which some have a network interface that accepts each port and attaches none."""
    return tuple(
        structs.replace(node, network_interface=chance.choice((NO_NETWORK, "flat", "flat"))) for node in nodes
    )


def _with_ports(chance: random.Random, boots: tuple[Boot, ...]) -> tuple[Boot, ...]:
    """The boots, of which some ask for ports on their node."""
    counts = [chance.choice((0, 0, 1, 2)) for _ in boots]
    return tuple(
        structs.replace(boot, ports=tuple(f"{boot.name}-port-{number}" for number in range(count)))
        if boot.node_class and boot.count == 1
        else boot
        for boot, count in zip(boots, counts, strict=True)
    )


def _boots(chance: random.Random) -> tuple[Boot, ...]:
    """The boots of a plan of bare metal. A few ask for a virtual flavor, which no node fits."""
    boots: list[Boot] = []
    while sum(boot.count for boot in boots) < INSTANCES:
        at_s = chance.uniform(*BUSY_S)
        is_virtual = chance.random() < 0.03
        boots.append(
            Boot(
                id=UUID(int=chance.getrandbits(128)),
                name=f"b{len(boots) + 1}",
                at_s=at_s,
                count=chance.choice((1, 1, 1, 2)),
                vcpus=1 if is_virtual else 0,
                ram_mb=512 if is_virtual else 0,
                repeated_at_s=tuple(at_s + chance.uniform(0, 20) for _ in range(chance.random() < 0.1)),
                deadline_s=chance.choice((12, 30, 30, 30)),
                node_class="" if is_virtual else chance.choice(CLASSES),
            )
        )
    return tuple(sorted(boots, key=lambda boot: boot.at_s))


def _deletes(chance: random.Random, boots: tuple[Boot, ...]) -> tuple[Delete, ...]:
    """Most instances are deleted, to make room for others: at once, during the deploy, or when they are active."""
    return tuple(
        Delete(
            boot.id,
            index,
            # A deploy with ports has time to fail on nodes that attach none.
            boot.at_s
            + PORTS_S * bool(boot.ports)
            + chance.choice((0.05, 0.5, 1.0, 2.0, 4.0, 8.0)) * chance.uniform(0.5, 1.5),
        )
        for boot in boots
        for index in range(boot.count)
        if chance.random() < 0.85
    )


def _rebuilds(chance: random.Random, boots: tuple[Boot, ...]) -> tuple[Rebuild, ...]:
    """Rebuilds of most instances, of some twice: the second order may arrive during the first rebuild."""
    rebuilds: list[Rebuild] = []
    for boot in boots:
        for index in range(boot.count):
            for _ in range(chance.choice((0, 0, 1, 1, 1, 2))):
                at_s = boot.at_s + chance.uniform(0, 12)
                repeated_at_s = tuple(at_s + chance.uniform(0, 8) for _ in range(chance.random() < 0.3))
                id_ = UUID(int=chance.getrandbits(128))
                rebuilds.append(Rebuild(id_, boot.id, index, at_s, repeated_at_s))
    return tuple(sorted(rebuilds, key=lambda rebuild: rebuild.at_s))


def _under_faults_s(chance: random.Random) -> float:
    return chance.uniform(*BUSY_S) + 1


def _faults_of_rebuilds(chance: random.Random) -> list[Fault]:
    at_s = partial(_under_faults_s, chance)
    return [
        *(Duplicate(at_s(), "", key, chance.choice((0.0, 0.1, 1.0, 8.0))) for key in KEYS_OF_REBUILDS * 2),
        *(Nack(at_s(), "", key, chance.choice((1, 3))) for key in KEYS_OF_REBUILDS),
        *(LostAnswer(at_s(), chance.choice(DAEMONS)) for _ in range(2)),
    ]


def _flips(chance: random.Random, nodes: tuple[SimulatedNode, ...]) -> tuple[Flip, ...]:
    """Changes of nodes at Ironic that Moorage did not order. They come in sequences that are drawn independently, so
    several may change one node at the same time.
    """
    flips: list[Flip] = []
    while len(flips) < FLIPS:
        at_s, name = chance.uniform(*BUSY_S), str(chance.choice(nodes).name)
        pace_s = chance.choice((0.02, 0.3, 1.0, 3.0))
        for number, action in enumerate(chance.choice(EVERY_EPISODE)):
            flips.append(Flip(at_s, name, action, chance.getrandbits(15) * 2 + number % 2))
            at_s += pace_s * chance.uniform(0.5, 1.5)
    return tuple(sorted(flips, key=lambda flip: flip.at_s))


def _script(chance: random.Random) -> IronicScript:
    return IronicScript(
        seed=chance.getrandbits(32),
        faults=(
            Loses(event_types=("*.end",), probability=chance.choice((0.0, 0.03, 0.15))),
            Loses(event_types=("*",), probability=chance.choice((0.0, 0.02))),
            Doubles(probability=0.08),
            Delays(late_s=0.2, probability=0.1),
            Delays(late_s=1.5, probability=0.05),
            Delays(late_s=6.0, probability=0.02),
            NodeLocked(probability=0.04),
            WorkFails(work="clean", probability=0.04),
            WorkFails(work="deploy", probability=0.1),
            WorkFails(work="tear down", probability=0.03),
        ),
    )


def _faults(chance: random.Random) -> list[Fault]:
    at_s = partial(_under_faults_s, chance)
    daemon = partial(chance.choice, DAEMONS)
    anyone = partial(chance.choice, (*DAEMONS, *DAEMONS, *OTHERS))
    faults: list[Fault] = [
        *(Crash(at_s(), daemon(), chance.choice((0.1, 2.0, 6.0))) for _ in range(3)),
        *(Crash(at_s(), chance.choice(OTHERS), chance.uniform(0.1, 2)) for _ in range(2)),
        *(CrashAt(at_s(), daemon(), point, chance.uniform(0.1, 5)) for point in POINTS),
        *(Zombie(at_s(), daemon(), chance.uniform(0.1, 3), chance.uniform(2, 8)) for _ in range(1)),
        *(Pause(at_s(), daemon(), for_s=chance.choice((0.5, 3.0, 5.0, 9.0))) for _ in range(3)),
        Leave(at_s(), daemon(), down_s=chance.uniform(0.1, 5)),
        Drain(at_s(), daemon(), for_s=chance.uniform(2, 8)),
        *(LostAnswer(at_s(), daemon()) for _ in range(3)),
        *(IronicAway(at_s(), for_s=chance.choice((1.0, 3.0, 10.0))) for _ in range(2)),
        *(Cut(at_s(), anyone()) for _ in range(3)),
        *(LostConfirm(at_s(), anyone()) for _ in range(3)),
        *(LostPublish(at_s(), anyone()) for _ in range(3)),
        *(LateConfirms(at_s(), anyone(), chance.uniform(0.5, 4), 3) for _ in range(2)),
        *(Duplicate(at_s(), "", key, chance.choice((0.0, 0.1, 1.0, 8.0))) for key in (*KEYS, *KEYS[:1] * 6)),
        *(LateRedelivery(at_s(), anyone(), chance.uniform(0.2, 3)) for _ in range(2)),
        *(Reorder(at_s(), daemon(), ".events", chance.uniform(0.2, 3)) for _ in range(2)),
        *(ClockJump(at_s(), daemon(), chance.uniform(-0.5, 0.5)) for _ in range(3)),
        *(FeedDrop(at_s(), chance.choice(OTHERS[:2]), chance.choice((1, 3))) for _ in range(2)),
        *(Deadlock(at_s(), daemon()) for _ in range(2)),
        *(SerialisationFailure(at_s(), daemon()) for _ in range(2)),
        *(LostAtCommit(at_s(), daemon(), is_done=is_done) for is_done in (False, True, True)),
        *(DatabaseAway(at_s(), daemon(), chance.choice((0.5, 2.0, 6.0))) for _ in range(2)),
        *(Nack(at_s(), "", key, chance.choice((1, 3))) for key in ("inventory.report", chance.choice(KEYS))),
    ]
    if chance.random() < 0.3:
        faults.append(RoleDown(at_s(), "", "placement", chance.uniform(1, 4)))
    if chance.random() < 0.3:
        faults.append(BrokerRestart(at_s()))
    return faults
