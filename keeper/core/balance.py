"""The steps of a balance: which guests may move, what becomes of a step when its turn comes, and which members of server groups are where
their rules do not let them be.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import structs

from bus.messages.build import InstanceDetails, InstanceState
from bus.messages.hosts import HostUse
from bus.messages.keeping import CampaignHost, CampaignState, CampaignWork, Movement
from bus.messages.planning import DrainedInstance
from bus.messages.policies import KeepingPolicy
from bus.messages.projects import GroupState
from engine.balancing import BalanceStep, LoadedHost, MovableGuest
from engine.flavors import InstanceId
from engine.goals import BalanceFigures, BalanceGoal
from engine.hosts import HostState, host_in_cell
from engine.inventories import GroupId
from engine.places import domain_of
from keeper.core.campaigns import BUSY, GOING, OPEN, Emptying, planned_for, staged, withdrawn

GAINS_NOTHING = "it would gain nothing now"
# A policy that says nothing of these has a plan made so often, carries it out from this gain on, and lets guests rest for so long.
EVERY_S, GAIN_MIN, REST_S = 3600, 10, 86_400


def loaded(host: HostState, use: HostUse, *, is_free: bool) -> LoadedHost:
    """The host with what it has. Nothing is planned to or from one that is not `is_free`: another campaign has it."""
    return LoadedHost(
        name=host_in_cell(host.cell, host.name),
        cell=host.cell,
        capacity={resource: each.capacity for resource, each in use.classes.items()},
        used={resource: each.used for resource, each in use.classes.items()},
        takes=is_free and takes_guests(host),
    )


def takes_guests(host: HostState) -> bool:
    return host.up and host.setting.mode == "up" and not host.must_clean


def movable(told: InstanceState, details: InstanceDetails) -> MovableGuest | None:
    """The guest as a plan sees it, if it may move for a balance: none of a group that stays together."""
    if told.state not in ("active", "stopped") or details.size is None or details.policy == "affinity":
        return None
    return MovableGuest(told.id, host_in_cell(told.cell, told.host), details.size.amounts)


def goal_of(work: CampaignWork) -> BalanceGoal:
    assert work.goal, "the work of a balance has a goal"
    return work.goal


def gain_between(before: BalanceFigures, after: BalanceFigures, work: CampaignWork) -> float:
    """How much nearer to the goal these figures are, in percent; 0 if there is nothing to gain."""
    was, goal = before.of(goal_of(work)), goal_of(work)
    return 100 * (was - after.of(goal)) / was if was else 0.0


def step_movement(
    campaign: CampaignState,
    host: CampaignHost,
    step: BalanceStep,
    guest: tuple[InstanceState, InstanceDetails],
    now: datetime,
) -> Movement:
    """The movement by which a step is made: live, or of a stopped guest as it is."""
    (planned,) = planned_for(campaign, host, (guest,), now)
    kind = "live-migrate" if guest[0].state == "active" else "migrate"
    return structs.replace(planned, kind=kind, wish=step.to, together=False)


def after_steps(
    campaign: CampaignState,
    host: CampaignHost,
    known: Sequence[Movement],
    told: HostState | None,
    now: datetime,
) -> Emptying:
    """What follows from a look at a host that gives guests: of a host that was set to anything, nothing more is moved by a plan."""
    why = ""
    if told is not None and not takes_guests(told):
        why = f"its host was set {told.setting.mode}" if told.setting.mode != "up" else "its host is down"
    elif campaign.work.goal == "fill" and any(each.life in ("withdrawn", "given_up") for each in known):
        why = "another guest stays, so its host would not be empty"
    gone = {each.id: why for each in known if why and each.life == "planned"}
    lives = Counter(each.life for each in known)
    left = sum(lives[each] for each in OPEN) - len(gone)
    stays = next((each.reason for each in known if each.life in ("given_up", "withdrawn")), why)
    seen = structs.replace(host, left=left, moved=lives["done"], stay=lives["given_up"], reason=stays)
    if left or any(each.life in GOING for each in known):
        return Emptying(seen, withdrawn=gone)
    if lives["given_up"]:
        after = staged(seen, "failed", now, f"{seen.stay} guests stay: {stays}")
    else:
        after = staged(seen, "done" if lives["done"] else "skipped", now, stays)
    return Emptying(after, withdrawn=gone)


def judged(movement: Movement, gain: float, plan: DrainedInstance | None, now: datetime) -> Movement:
    """A planned step whose turn has come: with its host, or withdrawn since it is not worth its work any more."""
    if gain <= 0:
        return withdrawn(movement, GAINS_NOTHING, now)
    if plan is None or not plan.to:
        reason = plan.reason if plan is not None else "no scheduler knows it"
        if reason.startswith(BUSY):
            return structs.replace(movement, reason=reason.removeprefix(BUSY))
        return withdrawn(movement, reason, now)
    return structs.replace(movement, to=plan.to, to_place=plan.place, reason="")


def broken_members(
    guests: Iterable[tuple[InstanceState, InstanceDetails]],
    groups: Mapping[GroupId, GroupState],
    places: Mapping[str, str],
) -> list[InstanceId]:
    """The members of groups that their rules would have elsewhere: of a host or domain with too many, those with the least priority."""
    members: dict[GroupId, list[tuple[InstanceState, InstanceDetails]]] = defaultdict(list)
    for told, details in guests:
        if details.group is not None and details.group in groups:
            members[details.group].append((told, details))
    found: dict[InstanceId, None] = {}
    for id_, some in members.items():
        group = groups[id_]
        some.sort(key=lambda each: (-each[1].priority, each[0].id))
        named = [(told.id, host_in_cell(told.cell, told.host)) for told, _ in some]
        if group.policy == "anti-affinity":
            found |= dict.fromkeys(_surplus(named, group.max_per_host))
        for rule in group.rules:
            there = [(member, domain_of(places.get(host, ""), rule.level)) for member, host in named]
            if rule.policy == "anti-affinity":
                found |= dict.fromkeys(_surplus(there, rule.max_members))
            elif rule.policy == "affinity":
                most = max(Counter(domain for _, domain in there).items(), key=lambda each: each[1])[0]
                found |= dict.fromkeys(member for member, domain in there if domain != most)
    return [*found]


def _surplus(there: Iterable[tuple[InstanceId, str]], most: int) -> list[InstanceId]:
    """Those beyond the first `most` of each host or domain; all that are in none."""
    seen: Counter[str] = Counter()
    found = []
    for member, of in there:
        seen[of] += 1
        if not of or seen[of] > most:
            found.append(member)
    return found


def work_of(policy: KeepingPolicy) -> CampaignWork:
    """The campaign that a policy has carried out again and again."""
    assert policy.balance is not None, "a policy without a goal has none carried out"
    return CampaignWork(
        kind="balance",
        goal=policy.balance,
        cell=policy.of if policy.scope == "cell" else "",
        place=policy.of if policy.scope == "domain" else "",
        rest_s=REST_S if policy.rest_s is None else policy.rest_s,
        failures_max=1000,
        reason="by its policy",
    )


def with_step(hosts: dict[str, LoadedHost], step: BalanceStep) -> None:
    """Note in the loads of these hosts that a step is made."""
    for name, sign in ((step.guest.host, -1), (step.to, 1)):
        host = hosts[name]
        used = {
            resource: amount + sign * step.guest.amounts.get(resource, 0)
            for resource, amount in host.used.items()
        }
        hosts[name] = structs.replace(host, used=used)
