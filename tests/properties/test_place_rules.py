"""Rules of server groups for domains in small worlds, against a slow and obvious judge: the host that the scheduler chooses, and what placement
says of each host.

A world is drawn by its number: hosts with places, a group, and what happens to it. Hosts may be in no domain, and be placed anew.
"""

from random import Random

import pytest
from msgspec import Struct, structs

from bus.messages.placement import ClaimResources, SwapClaim
from engine.choosing.choosing import Chosen, choose
from engine.choosing.plugin_settings import PluginSettings, chosen_plugins
from engine.inventories import (
    ConsumerId,
    GroupId,
    GroupMember,
    GroupPolicy,
    InventoryState,
    PlaceRule,
    ProviderId,
    ServerGroup,
)
from engine.places import PLACE_LEVELS_MAX
from engine.refusals import Claimed, ClaimVerdict, GroupRefused
from engine.requests.spec import InstanceSpec, of_mover
from placement_worker.core.claims import decide_claims
from placement_worker.core.ledger import (
    Consumer,
    GroupBook,
    GroupRow,
    Ledger,
    ProviderRow,
    Sent,
    limits_in,
)
from tests.contracts.placement_orders import (
    CELL,
    HORIZON,
    NOON,
    a_claim,
    a_share,
    a_swap,
    amounts,
    an_id,
    consumer,
    provider,
)
from tests.unit.choosing.scheduler_worlds import a_picture, a_spec, a_state

WORLDS = 1_000
STEPS = 4
PLUGINS = chosen_plugins(PluginSettings(weighers=("soft_affinity", "soft_anti_affinity")))
POLICIES: tuple[GroupPolicy, ...] = ("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity")


class World(Struct):
    """The truth: each host's place and room, and the host of each member."""

    group: ServerGroup
    places: dict[ProviderId, str]
    room: dict[ProviderId, int]
    members: dict[ConsumerId, ProviderId]

    def allows(self, host: ProviderId, mover: ConsumerId | None = None) -> bool:
        there = [at for who, at in self.members.items() if who != mover]
        if [*self.members.values()].count(host) >= self.room[host] or host == self.members.get(
            mover or NOBODY
        ):
            return False
        group = self.group
        if group.policy == "anti-affinity" and there.count(host) >= group.max_per_host:
            return False
        if group.policy == "affinity" and {*there} - {host}:
            return False
        return all(
            self._keeps(rule, host, there) for rule in group.rules if not rule.policy.startswith("soft")
        )

    def _keeps(self, rule: PlaceRule, host: ProviderId, there: list[ProviderId]) -> bool:
        mine = self.places[host].split("/")
        if not self.places[host] or len(mine) < rule.level:
            return False
        near = [at for at in there if self.places[at].split("/")[: rule.level] == mine[: rule.level]]
        return len(near) < rule.max_members if rule.policy == "anti-affinity" else len(near) == len(there)


NOBODY = consumer("nobody")


def drawn(chance: Random) -> World:
    rules = tuple(
        [
            PlaceRule(
                level=chance.choice((1, 2, 2, 3, PLACE_LEVELS_MAX))
                if chance.random() < 0.1
                else chance.randint(1, 3),
                policy=policy,
                max_members=chance.randint(1, 2) if policy == "anti-affinity" else 1,
            )
            for policy in chance.choices(POLICIES, weights=(2, 4, 1, 1), k=chance.randint(1, 3))
        ]
    )
    hosts = [provider(f"h{number}") for number in range(chance.randint(1, 7))]
    return World(
        group=ServerGroup(
            id=GroupId(an_id("ruled")),
            policy=chance.choices(POLICIES, weights=(1, 2, 2, 2))[0],
            max_per_host=chance.randint(1, 2),
            rules=rules,
        ),
        places={host: a_place(chance) for host in hosts},
        room={host: chance.randint(1, 3) for host in hosts},
        members={},
    )


def a_place(chance: Random) -> str:
    depth = chance.choice((0, 1, 2, 3, 3, 3))
    return "/".join([f"d{chance.randint(1, 2)}" for _ in range(depth)])


def spec_in(world: World) -> InstanceSpec:
    return structs.replace(a_spec(1), server_group=world.group)


def chosen_in(world: World, *specs: InstanceSpec) -> list[ProviderId | None]:
    """The hosts that a scheduler chooses if this world is its picture."""
    states = [
        structs.replace(
            a_state(
                f"h{number}",
                {"VCPU": InventoryState(total=world.room[host], used=[*world.members.values()].count(host))},
            ),
            place=place,
        )
        for number, (host, place) in enumerate(world.places.items())
    ]
    picture = a_picture(*states)
    picture.groups.join(
        GroupMember(group=world.group.id, consumer=who, attempt=1, host=host)
        for who, host in world.members.items()
    )
    found = choose(picture, specs, PLUGINS, 0)
    return [each.choice.share.host if isinstance(each, Chosen) else None for each in found]


def verdicts_in(world: World, *orders: ClaimResources | SwapClaim) -> list[ClaimVerdict]:
    """What placement says whose books are this world."""
    held = {who: amounts(host, VCPU=1) for who, host in world.members.items()}
    rows = {who: Consumer(id=who) for who in (each.consumer for each in orders)} | {
        who: Consumer(
            id=who, project="shop", cell=CELL, generation=1, attempt=1, host=host, group=world.group.id
        )
        for who, host in world.members.items()
    }
    ledger = Ledger(
        consumers={who.int: row for who, row in rows.items()},
        held={who.int: each for who, each in held.items()},
        providers={
            host.int: ProviderRow(
                id=host,
                root=host,
                cell=CELL,
                shape=1,
                limits=limits_in({"VCPU": InventoryState(total=room)}),
                used={"VCPU": [*world.members.values()].count(host)},
            )
            for host, room in world.room.items()
        },
        groups={world.group.id: GroupBook(GroupRow(world.group, "shop"), tuple(world.members.items()))},
        places=world.places,
    )
    return [*decide_claims(ledger, [Sent(each) for each in orders], NOON, HORIZON).verdicts]


def order_for(world: World, who: ConsumerId, host: ProviderId) -> ClaimResources | SwapClaim:
    share = a_share(host)
    if who in world.members:
        return a_swap(share, who, group=world.group)
    return a_claim(share, who, group=world.group)


@pytest.mark.parametrize("part", range(10))
def test_no_rule_is_broken_and_a_host_is_found_wherever_there_is_one(part: int) -> None:
    met = {"found": 0, "none": 0, "refused": 0, "moved": 0}
    for number in range(part, WORLDS, 10):
        chance = Random(number)
        world = drawn(chance)
        for step in range(STEPS):
            moves = bool(world.members) and chance.random() < 0.3
            who = chance.choice([*world.members]) if moves else consumer(f"{number}-{step}")
            mover = who if moves else None
            right = {host for host in world.places if world.allows(host, mover)}
            said = {host: verdicts_in(world, order_for(world, who, host))[0] for host in world.places}
            elsewhere = {host for host in said if host != world.members.get(who)}
            granted = {host for host in elsewhere if isinstance(said[host], Claimed)}
            assert granted == right, (number, step, world, said)
            met["refused"] += any(isinstance(each, GroupRefused) for each in said.values())

            spec = spec_in(world)
            if moves:
                own = f"h{[*world.places].index(world.members[who])}"
                alone = len(world.members) == 1
                spec = structs.replace(of_mover(spec, who, is_alone=alone), ignore_hosts=(own,))
            (host,) = chosen_in(world, spec)
            assert (host in right) if right else host is None, (number, step, world, host, right)
            met["found" if host else "none"] += 1
            met["moved"] += moves and host is not None
            if host is not None:
                world.members[who] = host
            if chance.random() < 0.2:
                world.places[chance.choice([*world.places])] = a_place(chance)
            if world.members and chance.random() < 0.2:
                del world.members[chance.choice([*world.members])]
    assert min(met.values()) > WORLDS // 100, met


@pytest.mark.parametrize("part", range(4))
def test_a_batch_that_the_scheduler_chooses_is_granted_by_placement(part: int) -> None:
    granted = 0
    for number in range(part, WORLDS, 4):
        chance = Random(WORLDS + number)
        world = drawn(chance)
        several = [consumer(f"{number}-{each}") for each in range(4)]
        hosts = chosen_in(world, *[spec_in(world)] * len(several))
        chosen = [(who, host) for who, host in zip(several, hosts, strict=True) if host is not None]
        orders = [order_for(world, who, host) for who, host in chosen]
        verdicts = verdicts_in(world, *orders)
        assert all(isinstance(each, Claimed) for each in verdicts), (number, world, verdicts)
        for who, host in chosen:
            assert world.allows(host), (number, world, chosen)
            world.members[who] = host
        if None in hosts:
            assert not any(map(world.allows, world.places)), (number, world, chosen)
        granted += len(chosen)
        # All four race for one host that was chosen by what one scheduler knew: the rules hold.
        other = drawn(chance)
        target = chance.choice([*other.places])
        race = [order_for(other, who, target) for who in several]
        for who, verdict in zip(several, verdicts_in(other, *race), strict=True):
            assert isinstance(verdict, Claimed) == other.allows(target), (number, other, verdict)
            if isinstance(verdict, Claimed):
                other.members[who] = target
    assert granted > WORLDS // 10
