"""Policies: which of them counts for a host or a guest. Each field is said by the narrowest policy that says anything of it."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from msgspec import Struct

from bus.messages.policies import KeepingPolicy, LostGuests, PolicyScope, PolicyState, PolicyValue
from engine.places import domain_of, is_within, why_no_place

SCOPES: tuple[PolicyScope, ...] = get_args(PolicyScope)
RESTARTS_MAX = 100
SECONDS_MAX = 86_400
REST_S_MAX = 30 * 86_400
HOSTS_MAX = 1_000_000
# A policy that says one of these decides on the other, too.
TOGETHER = (("fence", "unfenced"), ("lost_max", "level"))


class PolicyRule(Struct, frozen=True):
    """What counts for a host or a guest, and which policy says it. Without any policy: nothing is done."""

    guests: LostGuests = "leave"
    restarts: int = 0
    after_s: int = 0
    fence: str = ""
    fence_s: int = 120
    unfenced: str = ""
    lost_max: int = 3
    level: int = 0
    rehearse: bool = False
    said_by: Mapping[str, KeepingPolicy] = {}


FIELDS = tuple(field for field in PolicyRule.__struct_fields__ if field != "said_by")
OF_GUESTS = ("guests", "restarts")
OF_BALANCE = ("balance", "every_s", "gain_min", "rest_s")
SAID = (*FIELDS, *OF_BALANCE)


class PolicySubject(NamedTuple):
    """A host, or a guest on it."""

    cell: str
    place: str
    aggregates: frozenset[str] = frozenset()
    project: str = ""
    flavor: str = ""


def rule_for(policies: Iterable[KeepingPolicy], subject: PolicySubject) -> PolicyRule:
    values: dict[str, Any] = {}
    said_by: dict[str, KeepingPolicy] = {}
    for policy in sorted((each for each in policies if concerns(each, subject)), key=width_of):
        says = {field: value for field in FIELDS if (value := getattr(policy, field)) is not None}
        for pair in TOGETHER:
            if any(field in says for field in pair):
                for field in pair:
                    values.pop(field, None)
                    said_by.pop(field, None)
        values |= says
        said_by |= dict.fromkeys(says, policy)
    return PolicyRule(**values, said_by=said_by)


def concerns(policy: KeepingPolicy, subject: PolicySubject) -> bool:
    match policy.scope:
        case "cloud":
            return True
        case "cell":
            return policy.of == subject.cell
        case "domain":
            return is_within(subject.place, policy.of)
        case "aggregate":
            return policy.of in subject.aggregates
        case "project":
            return policy.of == subject.project
        case "flavor":
            return policy.of == subject.flavor


def width_of(policy: KeepingPolicy) -> tuple[int, int, list[int]]:
    """Wider policies are first. Two aggregates are in the reverse order of their names: the last of them counts."""
    depth = policy.of.count("/") if policy.scope == "domain" else 0
    return SCOPES.index(policy.scope), depth, [-ord(each) for each in policy.of]


def values_of(rule: PolicyRule) -> tuple[PolicyValue, ...]:
    """What counts, field by field, for people."""
    found: list[PolicyValue] = []
    for field in FIELDS:
        value, policy = getattr(rule, field), rule.said_by.get(field)
        text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
        scope: PolicyScope | Literal[""] = policy.scope if policy is not None else ""
        of = policy.of if policy is not None else ""
        found.append(PolicyValue(field=field, value=text, scope=scope, of=of))
    return tuple(found)


def group_of(rule: PolicyRule, subject: PolicySubject) -> str:
    """The domain or the cell whose lost hosts are counted together with this one."""
    policy = rule.said_by.get("lost_max")
    domain = domain_of(subject.place, rule.level)
    if policy is not None and policy.scope == "domain" and not is_within(domain, policy.of):
        domain = policy.of
    return f"domain {domain}" if domain else f"cell {subject.cell}"


def restarts_max(rule: PolicyRule) -> int:
    """How often a guest that died is started again."""
    return max(rule.restarts, 1 if rule.guests == "restart" else 0)


def may_restart(policies: Iterable[PolicyState]) -> bool:
    """Does any policy have guests that died started again?"""
    return any(each.policy.restarts or each.policy.guests == "restart" for each in policies)


def may_evacuate(policies: Iterable[PolicyState]) -> bool:
    """Does any policy have guests of lost hosts evacuated?"""
    return any(each.policy.guests == "evacuate" for each in policies)


def wrong_policy(policy: KeepingPolicy) -> tuple[str, object, str] | None:
    """The field that is wrong with a policy, its value, and why; None if it is right."""
    says = [field for field in SAID if getattr(policy, field) is not None]
    of_balance = next((field for field in says if field in OF_BALANCE), "")
    of_hosts = next((field for field in says if field not in OF_GUESTS), "")
    bounds = (
        *(("restarts", RESTARTS_MAX), ("after_s", SECONDS_MAX), ("fence_s", SECONDS_MAX)),
        *(("lost_max", HOSTS_MAX), ("gain_min", 100), ("rest_s", REST_S_MAX), ("every_s", SECONDS_MAX)),
    )
    checks: tuple[tuple[bool, str, object, str], ...] = (
        (
            policy.scope == "cloud" and bool(policy.of),
            "of",
            policy.of,
            "a policy of the cloud is of all that is there",
        ),
        (policy.scope != "cloud" and not policy.of, "of", "", f"name the {policy.scope} that it is for"),
        (
            policy.scope == "domain" and bool(why_no_place(policy.of)),
            "of",
            policy.of,
            why_no_place(policy.of),
        ),
        (not says, "guests", None, f"a policy says something: {', '.join(SAID)}"),
        (
            bool(of_balance) and policy.scope not in ("cloud", "cell", "domain"),
            of_balance,
            getattr(policy, of_balance, None),
            "a balance is of all hosts of the cloud, a cell or a domain",
        ),
        (
            bool(of_balance) and policy.balance is None,
            of_balance,
            getattr(policy, of_balance, None),
            "say the goal of the balance, too",
        ),
        (policy.every_s is not None and policy.every_s < 1, "every_s", policy.every_s, "at least 1"),
        (
            policy.scope in ("project", "flavor") and bool(of_hosts),
            of_hosts,
            getattr(policy, of_hosts, None),
            f"a {policy.scope} has only {' and '.join(OF_GUESTS)}: this is of hosts",
        ),
        (
            bool(policy.fence) and bool(policy.unfenced),
            "unfenced",
            policy.unfenced,
            f"it is fenced by {policy.fence}: leave one of the two out",
        ),
        (policy.fence_s is not None and policy.fence_s < 1, "fence_s", policy.fence_s, "at least 1"),
        (
            policy.level is not None and policy.lost_max is None,
            "level",
            policy.level,
            "a level says which lost hosts are counted together: with lost_max",
        ),
        *(
            (value is not None and not 0 <= value <= most, field, value, f"from 0 to {most}")
            for field, most in bounds
            for value in (getattr(policy, field),)
        ),
    )
    return next(((f"policy.{field}", value, why) for is_wrong, field, value, why in checks if is_wrong), None)
