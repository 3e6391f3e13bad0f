"""Verdicts of placement on a claim, why no host was found, and the parts of a plan."""

from typing import Literal

from engine.inventories import (
    ConsumerId,
    Counter,
    GroupId,
    GroupPolicy,
    Integer,
    Label,
    Natural,
    PlaceRule,
    ProviderId,
    ProviderState,
    ResourceClass,
    Share,
    Value,
    Variant,
)


class Shortfall(Value, frozen=True):
    """Why a provider could not give an amount, in numbers.

    `rule` is the limit that was broken: the capacity, or a bound of the inventory, whose value is `bound`.
    """

    provider: ProviderId
    resource: ResourceClass
    asked: Integer
    free: Integer
    rule: Literal["capacity", "min_unit", "max_unit", "step_size", "no_inventory"] = "capacity"
    bound: Integer = 0


def broken_rule_in_words(shortfall: Shortfall) -> str:
    """The limit that was broken, in parentheses after a space; empty if it is the capacity."""
    match shortfall.rule:
        case "capacity":
            return ""
        case rule:
            return f" ({rule} {shortfall.bound})"


class Claimed(Variant, frozen=True, tag="claimed"):
    """The claim is granted and stored."""


class AlreadyClaimed(Variant, frozen=True, tag="already_claimed"):
    """The consumer already holds a claim: this is the share that it really holds, and its attempt."""

    attempt: Integer
    share: Share


class HostFull(Value, frozen=True):
    """The host has reached the maximum number of consumers that the claim allows."""

    host: ProviderId
    instances: Integer
    instances_max: Integer


class DoesNotFit(Variant, frozen=True, tag="does_not_fit"):
    """These amounts could not be given, or the host is full of instances. Another host may help."""

    shortfalls: tuple[Shortfall, ...]
    full: HostFull | None = None


class GroupRefused(Variant, frozen=True, tag="group_refused"):
    """The policy of the server group forbids the host, because of members of the group that placement already has.

    These members are on `host`: with anti-affinity it is the host that was asked for, with affinity another one.
    `members` are the first ten of them, and `count` says how many there are.

    If a rule of the group forbids the host, `rule` is that, and the members are in `domain`. If the host has no domain of the rule's
    level, `domain` is empty, and no members are named.
    """

    group: GroupId
    policy: GroupPolicy
    host: ProviderId
    members: tuple[ConsumerId, ...]
    count: Integer
    max_per_host: Integer = 1
    rule: PlaceRule | None = None
    domain: Label = ""


def rule_in_words(rule: PlaceRule) -> str:
    most = f", at most {rule.max_members}" if rule.policy == "anti-affinity" else ""
    return f"{rule.policy} in domains of level {rule.level}{most}"


def why_no_member(group: GroupId, rule: PlaceRule, domain: str, members: int) -> str:
    """Why a rule of a server group lets no further member into a domain, which is empty if the host is in none of its level."""
    said = f"server group {group} ({rule_in_words(rule)})"
    if not domain:
        return f"{said}: the host's place has no such domain"
    return f"{said} has {members} members in {domain}"


class OverLimit(Value, frozen=True):
    """A limit of a project's quota that a claim would exceed. `name` is a resource class, or `instances`."""

    name: Label
    limit: Counter
    used: Integer
    asked: Integer


class QuotaExceeded(Variant, frozen=True, tag="quota_exceeded"):
    """The claim would bring its project over its quota. Another host would not help."""

    project: str
    over: tuple[OverLimit, ...]


def over_quota_in_words(refused: QuotaExceeded) -> str:
    limits = [f"{one.name} limit {one.limit}, used {one.used}, asked {one.asked}" for one in refused.over]
    return f"over the quota of project {refused.project}: {'; '.join(limits)}"


class ShapeMoved(Variant, frozen=True, tag="shape_moved"):
    """The provider trees are no longer as the sender of the claim saw them.

    The shapes of the trees of `roots` have moved; the trees of `gone` no longer exist. `trees` has all providers of
    the moved trees as they are now. Very large trees are left out: they must be asked for separately.
    """

    roots: tuple[ProviderId, ...] = ()
    trees: tuple[ProviderState, ...] = ()
    gone: tuple[ProviderId, ...] = ()


class Superseded(Variant, frozen=True, tag="superseded"):
    """Placement has seen a later attempt of this consumer, or this attempt has ended.

    `attempt` is the highest attempt of the consumer that placement has seen, 0 if it knows none.
    """

    attempt: Integer
    ended: bool


class TooOld(Variant, frozen=True, tag="too_old"):
    """The attempt is so old that placement no longer knows whether it has ended."""

    horizon_s: Integer


class Released(Variant, frozen=True, tag="released"):
    """Everything that the consumer held is free, and no claim up to this attempt will be granted."""

    freed: bool


class NotAllowed(Variant, frozen=True, tag="not_allowed"):
    """The request is invalid, or the sender has no right to it. Repeating it will not help."""

    field: str
    reason: str


ClaimVerdict = (
    Claimed
    | AlreadyClaimed
    | DoesNotFit
    | GroupRefused
    | QuotaExceeded
    | ShapeMoved
    | Superseded
    | TooOld
    | Released
    | NotAllowed
)


class TooCostly(Variant, frozen=True, tag="too_costly"):
    """The search was cut off: it had used `spent` units of `what`, and may use only `budget`.

    Whether there are candidates is unknown. A question with fewer groups, or for fewer candidates, may succeed.
    """

    what: Literal["steps", "bytes", "answer_bytes"]
    spent: Integer
    budget: Integer


class FunnelStep(Value, frozen=True):
    """How many hosts one filter step removed, and the reason for one of them."""

    step: str
    removed: Natural
    example: str = ""


class Miss(Value, frozen=True):
    """A host that was nearly suitable, and what it lacked."""

    host: str
    reason: str


class NoValidHost(Value, frozen=True):
    """Why no host was found: `hosts` were considered, and the filters (`steps`) removed them.

    `nearest` are the hosts that the request named; if it named none, they are the hosts that lacked least. In the
    answer to a plan (`PlanFound`) the filters may leave some hosts: these would qualify. `unknown` has a line for the zone, and for
    each trait and class, that is asked for and that no host has, with the names near it.
    """

    hosts: Natural
    steps: tuple[FunnelStep, ...]
    nearest: tuple[Miss, ...] = ()
    unknown: tuple[str, ...] = ()


# How many instances move together at most.
TOGETHER_MAX = 100


class PlannedCell(Value, frozen=True):
    """A cell in a plan: how many of its hosts qualify, and how many more instances fit there."""

    cell: str
    hosts: Natural
    fit: Natural


class Relaxation(Value, frozen=True):
    """A smaller demand, and how many hosts would qualify with it."""

    change: str
    hosts: Natural


class ExhaustedPool(Value, frozen=True):
    """A sharing provider that has too little of a class. `hosts` counts the hosts that could take it only from there."""

    pool: str
    resource: str
    asked: Natural
    free: Integer
    capacity: Natural
    hosts: Natural


class QuotaRoom(Value, frozen=True):
    """How many more such instances the quota of the project allows. `limits` are the limits that allow no more than that; `asked`
    is what one instance asks.
    """

    fit: Natural
    limits: tuple[OverLimit, ...]


class PlannedFlavor(Value, frozen=True):
    """The plan for one more flavor that a request accepts. Its fields are those of the plan (`PlanFound`)."""

    flavor: Label
    qualify: Natural
    fit: Natural
    is_cut: bool
    cells: tuple[PlannedCell, ...]
    funnel: NoValidHost
    relaxations: tuple[Relaxation, ...] = ()
    pools: tuple[ExhaustedPool, ...] = ()
    quota: QuotaRoom | None = None


class HostVerdict(Value, frozen=True):
    """Whether a host qualifies for the instance that a question describes, and if not, why.

    `step` is the first filter that removes the host, and `reason` is why it does. If no filter removes it, both are
    empty, and `fit` says how many such instances the host has room for.

    If the request accepts several flavors, the verdict is about the first `flavor` for which the host qualifies, or about the
    best one if it qualifies for none.
    """

    host: str
    cell: str
    fit: Natural = 0
    step: str = ""
    reason: str = ""
    flavor: Label = ""
