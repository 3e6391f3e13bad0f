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
query_schemas.py says which keys exist at which version.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Literal
from uuid import UUID

from msgspec import Struct

from bus.message import ProviderId
from placement_worker.api.grammar.query_values import (
    INVALID,
    NUMBER,
    ONE_OR_MORE,
    each_of,
    member_of_in,
    resources_in,
    traits_in,
    tree_in,
)
from placement_worker.api.values.problems import BAD_VALUE, DUPLICATE_KEY, MISSING_VALUE, bad_request
from placement_worker.api.values.versions import Version
from placement_worker.core.candidates.query import CandidatesQuery, Group

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
