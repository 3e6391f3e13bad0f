"""The grammar of queries, by version: translates what clients ask about providers and candidates into values.

    resources=VCPU:2,MEMORY_MB:512          amounts of each class
    required=HW_A,!HW_B                     with the first trait, without the second (! from 1.22 on)
    required=in:HW_A,HW_C                   with any of these traits (from 1.39 on, which also allows to repeat the key)
    member_of=AGG  in:AGG,AGG               in this aggregate, in any of these; repeated (from 1.24 on): in one of each
    member_of=!AGG  !in:AGG,AGG             in none of these (from 1.32 on)
    in_tree=PROVIDER                        in the tree of this provider
    root_required=HW_A,!HW_B                traits of the tree's root (from 1.35 on)
    same_subtree=_A,_B                      the providers of these groups are at or below one of them (from 1.36 on)

The first four and `in_tree` may end in a suffix; keys with one suffix make a group: a number (from 1.25 on), or a word (from 1.33 on).
The schemas at the end of the file say which keys exist at which version.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

from engine.candidates.query import CandidatesQuery, Group
from engine.inventories import INTEGER_MAX, AggregateId, ProviderId
from placement_worker.api.schemas import (
    LABEL,
    NAME,
    SUFFIX,
    UUID_TEXT,
    Schema,
    Schemas,
    VersionedValidators,
    record,
    uuid_in,
)
from placement_worker.api.values import (
    BAD_VALUE,
    DUPLICATE_KEY,
    MISSING_VALUE,
    ApiError,
    Version,
    bad_request,
)

Traits = tuple[tuple[str, ...], ...]
Aggregates = tuple[tuple[AggregateId, ...], ...]

FORBIDDEN_TRAITS: Final[Version] = (1, 22)
MANY_MEMBER_OF: Final[Version] = (1, 24)
FORBIDDEN_AGGREGATES: Final[Version] = (1, 32)
ANY_TRAITS: Final[Version] = (1, 39)

INVALID: Final = "Invalid query string parameters"
ONE_OR_MORE: Final = "HW_CPU_X86_VMX,CUSTOM_MAGIC"
WITH_FORBIDDEN: Final = "HW_CPU_X86_VMX,!CUSTOM_MAGIC"
# Longer than any allowed number, so that an error can still quote it as a number.
NUMBER: Final = re.compile(r"-?[0-9]{1,30}", re.ASCII)


def resources_in(value: str) -> dict[str, int]:
    if not value.strip():
        raise _badly_formed_resources("empty string")
    return dict(_resource(part) for part in value.split(","))


def _resource(part: str) -> tuple[str, int]:
    match part.split(":"):
        case [name, text]:
            amount = int(text) if NUMBER.fullmatch(text.strip()) else None
        case _:
            raise _badly_formed_resources(part)
    if amount is None:
        raise bad_request(f"Requested resource {name} expected positive integer amount. Got: {text}.")
    if amount < 1:
        raise bad_request(f"Requested resource {name} requires amount >= 1. Got: {amount}.")
    if amount > INTEGER_MAX:
        raise bad_request(f"Requested resource {name} requires amount <= {INTEGER_MAX}. Got: {amount}.")
    return name, amount


def _badly_formed_resources(got: str) -> ApiError:
    return bad_request(
        "Badly formed resources parameter. Expected resources query string parameter in form: "
        f"?resources=NAME:AMOUNT,NAME:AMOUNT. Got: {got}."
    )


def traits_in(values: list[str], version: Version) -> tuple[Traits, tuple[str, ...]]:
    """The required and the forbidden traits in the values of `required`. Until 1.38 only the last value counts."""
    if version < ANY_TRAITS:
        values = values[-1:]
    required: list[tuple[str, ...]] = []
    forbidden: list[str] = []
    for value in values:
        if value.startswith("in:"):
            required.append(_any_of(value, version))
        else:
            wanted, unwanted = each_of(value, may_forbid=version >= FORBIDDEN_TRAITS)
            required += [(trait,) for trait in wanted]
            forbidden += unwanted
    return tuple(dict.fromkeys(required)), tuple(dict.fromkeys(forbidden))


def _any_of(value: str, version: Version) -> tuple[str, ...]:
    if version < ANY_TRAITS:
        raise bad_request(
            f"{INVALID}: The format 'in:{ONE_OR_MORE}' only supported since microversion 1.39. Got: {value}"
        )
    traits = tuple(sorted({part.strip() for part in value.removeprefix("in:").split(",")}))
    if "" in traits:
        raise bad_request(
            f"{INVALID}: Expected 'required' parameter value of the form: in:{ONE_OR_MORE}. "
            f"A trait in {value!r} has no name"
        )
    if any(trait.startswith("!") for trait in traits):
        raise bad_request(
            f"{INVALID}: The format 'in:{ONE_OR_MORE}' does not support forbidden traits. Got: {value}"
        )
    return traits


def each_of(value: str, *, may_forbid: bool) -> tuple[list[str], list[str]]:
    """The required and the forbidden traits in one value, a list with commas. One `!` or several forbid a trait."""
    named = [part.strip() for part in value.split(",")]
    required = [trait for trait in named if not trait.startswith("!")]
    forbidden = [trait.lstrip("!") for trait in named if trait.startswith("!")]
    validator = WITH_FORBIDDEN if may_forbid else ONE_OR_MORE
    expected = f"{INVALID}: Expected 'required' parameter value of the form: {validator}."
    if "" in required or "" in forbidden:
        raise bad_request(f"{expected} A trait in {value!r} has no name")
    if forbidden and not may_forbid:
        raise bad_request(f"{expected} Got: {value}")
    return required, forbidden


def member_of_in(key: str, values: list[str], version: Version) -> tuple[Aggregates, tuple[AggregateId, ...]]:
    if len(values) > 1 and version < MANY_MEMBER_OF:
        raise bad_request(f"Multiple {key} parameters are not supported")
    required: list[tuple[AggregateId, ...]] = []
    forbidden: list[AggregateId] = []
    for value in values:
        aggregates = _aggregates(value.removeprefix("!"), value)
        if not value.startswith("!"):
            required.append(aggregates)
        elif version < FORBIDDEN_AGGREGATES:
            raise bad_request(
                f"Forbidden {key} parameters are not supported in the specified microversion. Got: {value}"
            )
        else:
            forbidden += aggregates
    return tuple(required), tuple(dict.fromkeys(forbidden))


def _aggregates(named: str, value: str) -> tuple[AggregateId, ...]:
    if "," in named and not named.startswith("in:"):
        raise bad_request(
            "Multiple values for 'member_of' must be prefixed with the 'in:' or '!in:' keyword using the valid "
            f"microversion. Got: {value!r}"
        )
    aggregates: dict[AggregateId, None] = {}
    for text in named.removeprefix("in:").split(","):
        aggregate = uuid_in(text)
        if aggregate is None:
            raise bad_request(
                f"{INVALID}: Expected 'member_of' parameter to contain valid UUID(s). Got: {text!r}"
            )
        aggregates[AggregateId(aggregate)] = None
    return tuple(aggregates)


def tree_in(value: str) -> ProviderId:
    provider = uuid_in(value.strip())
    if provider is None:
        raise bad_request(f"{INVALID}: Expected 'in_tree' parameter to be a format of uuid. Got: {value!r}")
    return ProviderId(provider)


Query = Sequence[tuple[str, str]]

_SEVERAL_OF_A_TREE: Version = (1, 29)
_WORDY_SUFFIXES: Version = (1, 33)
_SAME_SUBTREE: Version = (1, 36)

# Larger than any number of candidates.
_LIMIT_MAX = 2**31 - 1
_OF_A_GROUP = r"(resources|required|member_of|in_tree)"
_NUMBERED = re.compile(rf"{_OF_A_GROUP}([1-9][0-9]*)?")
_WORDY = re.compile(rf"{_OF_A_GROUP}([a-zA-Z0-9_-]{{1,64}})?")


class ProviderQuery(Struct, frozen=True):
    """A query for providers. Each provider found fulfils all conditions by itself, without others of its tree."""

    name: str = ""
    id: ProviderId | None = None
    group: Group = Group()


def provider_query(query: Query, version: Version) -> ProviderQuery:
    last, values = dict(query), _by_key(query)
    # The last value of these keys counts; earlier ones are not even checked.
    values |= {key: [last[key]] for key in ("resources", "in_tree") if key in last}
    return ProviderQuery(
        name=last.get("name", ""),
        id=ProviderId(UUID(last["uuid"])) if "uuid" in last else None,
        group=_group(values, "", version),
    )


def candidates_query(query: Query, version: Version) -> CandidatesQuery:
    root_required, root_forbidden = _root_required(query)
    same_subtree = _same_subtree(query)
    groups = _groups(query, version)
    if version >= _SAME_SUBTREE:
        _check_subtrees(groups, same_subtree)
    else:
        _check_all_ask(groups)
    _check_conflicts(groups)
    policies = values_of(query, "group_policy")
    if not policies and sum(1 for group in groups if group.suffix) > 1:
        raise bad_request(
            'The "group_policy" parameter is required when specifying more than one "resources{N}" parameter.'
        )
    return CandidatesQuery(
        groups=groups,
        group_policy=_policy(policies),
        same_subtree=same_subtree,
        root_required=root_required,
        root_forbidden=root_forbidden,
        limit=_limit(query),
        one_provider_per_tree=version < _SEVERAL_OF_A_TREE,
    )


def _groups(query: Query, version: Version) -> tuple[Group, ...]:
    pattern = _WORDY if version >= _WORDY_SUFFIXES else _NUMBERED
    suffixes = {match[2] or "" for key, _ in query if (match := pattern.fullmatch(key))}
    values = _by_key(query)
    return tuple([_group(values, suffix, version) for suffix in sorted(suffixes)])


def _group(values: Mapping[str, list[str]], suffix: str, version: Version) -> Group:
    resources = [resources_in(value) for value in values.get(f"resources{suffix}", ())]
    required, forbidden = traits_in(values.get(f"required{suffix}", []), version)
    of_aggregates = f"member_of{suffix}"
    member_of, forbidden_aggregates = member_of_in(of_aggregates, values.get(of_aggregates, []), version)
    in_tree = [tree_in(value) for value in values.get(f"in_tree{suffix}", ())]
    return Group(
        suffix=suffix,
        resources=resources[-1] if resources else {},
        required=required,
        forbidden=forbidden,
        member_of=member_of,
        forbidden_aggregates=forbidden_aggregates,
        in_tree=in_tree[-1] if in_tree else None,
    )


def _by_key(query: Query) -> dict[str, list[str]]:
    """The values of each query key. They are collected once for all groups, since there may be as many groups as keys."""
    values: dict[str, list[str]] = {}
    for key, value in query:
        values.setdefault(key, []).append(value)
    return values


def values_of(query: Query, key: str) -> list[str]:
    return [value for name, value in query if name == key]


def _root_required(query: Query) -> tuple[tuple[str, ...], tuple[str, ...]]:
    values = values_of(query, "root_required")
    if len(values) > 1:
        raise bad_request("Query parameter 'root_required' may be specified only once.", DUPLICATE_KEY)
    if not values:
        return (), ()
    if values[0].startswith("in:"):
        raise bad_request(
            f"{INVALID}: The format 'in:{ONE_OR_MORE}' is not allowed in 'root_required'. Got: {values[0]}"
        )
    required, forbidden = each_of(values[0], may_forbid=True)
    conflicts = sorted(set(required) & set(forbidden))
    if conflicts:
        raise bad_request(
            f"Conflicting required and forbidden traits found in root_required: {', '.join(conflicts)}",
            BAD_VALUE,
        )
    return tuple(dict.fromkeys(required)), tuple(dict.fromkeys(forbidden))


def _same_subtree(query: Query) -> tuple[tuple[str, ...], ...]:
    subtrees = [
        tuple(dict.fromkeys(part.strip() for part in value.split(",")))
        for value in values_of(query, "same_subtree")
    ]
    if any("" in subtree for subtree in subtrees):
        raise bad_request("Empty string (unsuffixed group) can not be specified in `same_subtree`", BAD_VALUE)
    return tuple(subtrees)


def _policy(values: list[str]) -> Literal["none", "isolate"] | None:
    """The `group_policy` of a query. If it is given several times, the first value counts, as with `limit`."""
    match values[:1]:
        case []:
            return None
        case ["none"]:
            return "none"
        case ["isolate"]:
            return "isolate"
        case _:
            raise bad_request(f"{INVALID}: {values[0]!r} is not one of ['none', 'isolate']")


def _limit(query: Query) -> int | None:
    values = values_of(query, "limit")
    if not values:
        return None
    if not NUMBER.fullmatch(values[0]) or int(values[0]) < 1:
        raise bad_request(f"{INVALID}: limit {values[0]!r} is not a positive integer")
    return min(int(values[0]), _LIMIT_MAX)


# Checks across groups


def _check_subtrees(groups: Iterable[Group], same_subtree: tuple[tuple[str, ...], ...]) -> None:
    """Check groups and `same_subtree` from 1.36 on: a group may ask for no resources only if `same_subtree` names it."""
    suffixes = [group.suffix for group in groups]
    without = [group.suffix for group in groups if not group.resources]
    named = {suffix for subtree in same_subtree for suffix in subtree}
    if len(without) == len(suffixes):
        raise bad_request("There must be at least one resources or resources[$S] parameter.", MISSING_VALUE)
    if unnamed := [suffix for suffix in without if suffix not in named]:
        raise bad_request(
            "Resourceless suffixed group request should be specified in `same_subtree` query param; "
            f"it names none of {unnamed}",
            BAD_VALUE,
        )
    if unreal := sorted(named.difference(suffixes)):
        raise bad_request(
            f"Real suffixes should be specified in `same_subtree`: {unreal} not found in {suffixes}.",
            BAD_VALUE,
        )


def _check_all_ask(groups: Sequence[Group]) -> None:
    """Check that each group asks for resources, which is required until 1.35."""
    without = [group for group in groups if not group.resources]
    if orphans := [f"required{group.suffix}" for group in without if group.required]:
        raise bad_request(
            f"Traits need a group that asks for resources. Found the following orphaned traits keys: {', '.join(orphans)}"
        )
    if orphans := [
        f"member_of{group.suffix}" for group in without if group.member_of or group.forbidden_aggregates
    ]:
        raise bad_request(
            "All member_of parameters must be associated with resources: "
            f"these groups have none. Found the following orphaned member_of keys: {', '.join(orphans)}"
        )
    if without:
        raise bad_request("All request groups must specify resources.")
    if not groups:
        raise bad_request("At least one request group (`resources` or `resources{$S}`) is required.")


def _check_conflicts(groups: Iterable[Group]) -> None:
    conflicts = [
        f"required{group.suffix}: ({', '.join(any_of)})"
        for group in groups
        for forbidden in (set(group.forbidden),)
        for any_of in group.required
        if forbidden.issuperset(any_of)
    ]
    if conflicts:
        raise bad_request(
            f"The same traits are required and forbidden, so nothing fits: {', '.join(sorted(conflicts))}"
        )


def traits_named(groups: Iterable[Group], *of_root: str) -> set[str]:
    """All traits that a query names; they must exist."""
    return set(of_root).union(*[chain(group.forbidden, *group.required) for group in groups])


# The keys that a query may have at each microversion, as JSON Schema.
#
# A schema checks a value only where Placement, too, answers with an error of JSON Schema.

TEXT: Schema = {"type": "string"}
_NUMBERED_SUFFIX = "[1-9][0-9]*"
_LIMIT: Schema = {"type": "string", "pattern": "^[1-9][0-9]*$", "minLength": 1}
_POLICY: Schema = {"type": "string", "enum": ["none", "isolate"]}


def _growing(added: Mapping[Version, dict[str, Schema]], *, required: tuple[str, ...] = ()) -> Schemas:
    """The schemas of a query to which versions add keys: at each version it has that version's keys and all earlier ones."""
    keys = accumulate(added.values(), dict.__or__)
    return {since: record(each, required=required) for since, each in zip(added, keys, strict=True)}


PROVIDERS = VersionedValidators(
    _growing(
        {
            (1, 0): {"name": TEXT, "uuid": UUID_TEXT},
            (1, 3): {"member_of": TEXT},
            (1, 4): {"resources": TEXT},
            (1, 14): {"in_tree": UUID_TEXT},
            (1, 18): {"required": TEXT},
        }
    )
)
TRAITS = VersionedValidators({(1, 6): record({"name": TEXT, "associated": TEXT})})
USAGES = VersionedValidators(
    _growing(
        {
            (1, 9): {"project_id": LABEL, "user_id": LABEL},
            # Two values that are no consumer types: "all" is the sum of all of them, "unknown" is for consumers without a type.
            (1, 38): {"consumer_type": {**LABEL, "pattern": f"{NAME}|^all$|^unknown$"}},
        },
        required=("project_id",),
    )
)


def _grouped(suffix: str, grouped: tuple[str, ...], **others: Schema) -> Schema:
    """The schema of a query for candidates from 1.25 on. Each key in `grouped` may end in a suffix that names a group."""
    return record({"limit": _LIMIT, "group_policy": _POLICY, **others}) | {
        "patternProperties": {f"^{key}({suffix})?$": TEXT for key in grouped}
    }


_GROUP_KEYS = ("resources", "required", "member_of")
CANDIDATES = VersionedValidators(
    {
        **_growing(
            {
                (1, 10): {"resources": TEXT},
                (1, 16): {"limit": _LIMIT},
                (1, 17): {"required": TEXT},
                (1, 21): {"member_of": TEXT},
            },
            required=("resources",),
        ),
        (1, 25): _grouped(_NUMBERED_SUFFIX, _GROUP_KEYS),
        (1, 31): _grouped(_NUMBERED_SUFFIX, (*_GROUP_KEYS, "in_tree")),
        (1, 33): _grouped(SUFFIX, (*_GROUP_KEYS, "in_tree")),
        (1, 35): _grouped(SUFFIX, (*_GROUP_KEYS, "in_tree"), root_required=TEXT),
        (1, 36): _grouped(SUFFIX, (*_GROUP_KEYS, "in_tree"), root_required=TEXT, same_subtree=TEXT),
    }
)
