"""The grammar of placement's queries, version by version, parsed into values."""

from urllib.parse import parse_qsl
from uuid import UUID

import pytest

from engine.candidates.query import CandidatesQuery, Group
from engine.inventories import AggregateId, ProviderId
from placement_worker.api import queries
from placement_worker.api.queries import ProviderQuery, candidates_query, provider_query, traits_named
from placement_worker.api.schemas import Validator
from placement_worker.api.values import BAD_VALUE, DUPLICATE_KEY, MISSING_VALUE, NEWEST, ApiError, Version

A = AggregateId(UUID("9323b2b1-82c9-4e91-bdff-e95e808ef954"))
B = AggregateId(UUID("8592a199-7d73-4465-8df6-ab00a6243c82"))
TREE = ProviderId(UUID("b9fc9abb-afc2-44d7-9722-19afc977446a"))


def candidates(query: str, version: Version = NEWEST) -> CandidatesQuery:
    return candidates_query(tuple(parse_qsl(query, keep_blank_values=True)), version)


def providers(query: str, version: Version = NEWEST) -> ProviderQuery:
    return provider_query(tuple(parse_qsl(query, keep_blank_values=True)), version)


def refused(query: str, version: Version = NEWEST) -> ApiError:
    with pytest.raises(ApiError) as caught:
        candidates(query, version)
    assert caught.value.status == 400
    return caught.value


def test_a_query_without_suffixes_is_one_group() -> None:
    assert candidates(
        f"resources=VCPU:2,MEMORY_MB:512&required=HW_A,!HW_B&member_of={A}&in_tree={TREE}&limit=5"
    ) == CandidatesQuery(
        groups=(
            Group(
                resources={"VCPU": 2, "MEMORY_MB": 512},
                required=(("HW_A",),),
                forbidden=("HW_B",),
                member_of=((A,),),
                in_tree=TREE,
            ),
        ),
        limit=5,
    )


def test_keys_with_the_same_suffix_are_one_group() -> None:
    query = candidates(
        "resources=VCPU:1&resources_NIC=VF:1&required_NIC=HW_A&resources7=VF:2&group_policy=none"
    )

    assert query.groups == (
        Group(resources={"VCPU": 1}),
        Group(suffix="7", resources={"VF": 2}),
        Group(suffix="_NIC", resources={"VF": 1}, required=(("HW_A",),)),
    )
    assert query.group_policy == "none"


def test_several_groups_with_suffixes_need_a_policy() -> None:
    assert "group_policy" in refused("resources1=VF:1&resources2=VF:1").detail
    assert candidates("resources=VCPU:1&resources1=VF:1").group_policy is None


def test_a_trait_that_is_required_again_adds_up_from_1_39_and_replaces_before() -> None:
    query = "resources=VCPU:1&required=HW_A&required=HW_B"

    assert candidates(query).groups[0].required == (("HW_A",), ("HW_B",))
    assert candidates(query, (1, 38)).groups[0].required == (("HW_B",),)


def test_any_of_several_traits_may_be_asked_from_1_39_on() -> None:
    query = "resources=VCPU:1&required=in:HW_B,HW_A"

    assert candidates(query).groups[0].required == (("HW_A", "HW_B"),)
    assert "1.39" in refused(query, (1, 38)).detail
    assert "forbidden" in refused("resources=VCPU:1&required=in:HW_A,!HW_B").detail


def test_traits_may_be_forbidden_from_1_22_on() -> None:
    query = "resources=VCPU:1&required=!!HW_A"

    assert candidates(query, (1, 22)).groups[0].forbidden == ("HW_A",)
    assert "Got: !!HW_A" in refused(query, (1, 21)).detail


@pytest.mark.parametrize("value", ["", "HW_A,", ",", "!", "HW_A,!", "in:", "in:HW_A,"])
def test_a_trait_without_a_name_is_refused(value: str) -> None:
    assert "has no name" in refused(f"resources=VCPU:1&required={value}").detail


def test_a_trait_that_is_required_and_forbidden_is_refused_with_its_group() -> None:
    assert "required_X: (HW_A)" in refused("resources_X=VCPU:1&required_X=HW_A,!HW_A").detail
    assert refused("resources=VCPU:1&root_required=HW_A,!HW_A").code == BAD_VALUE


def test_aggregates_are_members_of_one_of_any_and_of_none() -> None:
    (group,) = candidates(
        f"resources=VCPU:1&member_of=in:{A},{B}&member_of={A}&member_of=!{B}&member_of=!in:{A},{B}"
    ).groups

    assert group.member_of == ((A, B), (A,))
    assert group.forbidden_aggregates == (B, A)


def test_aggregates_may_be_named_again_from_1_24_and_forbidden_from_1_32_on() -> None:
    again = f"resources=VCPU:1&member_of={A}&member_of={B}"
    forbidden = f"resources=VCPU:1&member_of=!{A}"

    assert "Multiple member_of" in refused(again, (1, 23)).detail
    assert candidates(again, (1, 24)).groups[0].member_of == ((A,), (B,))
    assert "Forbidden member_of" in refused(forbidden, (1, 31)).detail
    assert candidates(forbidden, (1, 32)).groups[0].forbidden_aggregates == (A,)


@pytest.mark.parametrize("value", ["", "x", f"{A},{B}", f"in:{A},", "!in:", f"!{A},{B}", f"!!{A}"])
def test_an_invalid_aggregate_is_refused_with_its_value(value: str) -> None:
    assert refused(f"resources=VCPU:1&member_of={value}").detail.partition("Got: ")[2] != ""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "Got: empty string."),
        ("VCPU", "Got: VCPU."),
        ("VCPU:1:2", "Got: VCPU:1:2."),
        ("VCPU:", "expected positive integer"),
        ("VCPU:one", "Got: one."),
        ("VCPU:0", "amount >= 1. Got: 0."),
        ("VCPU:-2", "amount >= 1. Got: -2."),
        ("VCPU:2147483648", "amount <= 2147483647"),
        ("VCPU:" + 5000 * "9", "expected positive integer"),
        ("VCPU:1,", "Got: ."),
    ],
)
def test_an_invalid_amount_is_refused_with_its_value(value: str, said: str) -> None:
    assert said in refused(f"resources={value}").detail


def test_groups_without_resources_are_for_subtrees_alone() -> None:
    assert candidates(
        "resources_A=VF:1&required_B=HW_A&same_subtree=_A,_B&group_policy=none"
    ).same_subtree == (("_A", "_B"),)
    assert refused("resources_A=VF:1&required_B=HW_A&group_policy=none").code == BAD_VALUE
    assert refused("required_B=HW_A&same_subtree=_B").code == MISSING_VALUE
    assert refused("resources_A=VF:1&same_subtree=_A,_C").code == BAD_VALUE
    assert refused("resources_A=VF:1&same_subtree=_A,").code == BAD_VALUE
    assert "orphaned traits keys: required_B" in refused("resources_A=VF:1&required_B=HW_A", (1, 35)).detail


def test_the_root_is_asked_for_once() -> None:
    query = candidates("resources=VCPU:1&root_required=HW_A,!HW_B")

    assert (query.root_required, query.root_forbidden) == (("HW_A",), ("HW_B",))
    assert refused("resources=VCPU:1&root_required=HW_A&root_required=HW_B").code == DUPLICATE_KEY
    assert "in:" in refused("resources=VCPU:1&root_required=in:HW_A,HW_B").detail


def test_of_a_repeated_limit_the_first_counts() -> None:
    assert candidates("resources=VCPU:1&limit=3&limit=5").limit == 3
    assert "'x'" in refused("resources=VCPU:1&limit=x&limit=5").detail


def test_two_providers_of_one_tree_are_no_candidate_before_1_29() -> None:
    assert candidates("resources=VCPU:1", (1, 28)).one_provider_per_tree
    assert not candidates("resources=VCPU:1", (1, 29)).one_provider_per_tree


def test_providers_are_asked_for_by_what_each_has_itself() -> None:
    query = providers(
        f"name=a&uuid={TREE}&in_tree={TREE}&resources=VCPU:1&required=HW_A,!HW_B&member_of=in:{A},{B}"
    )

    assert query == ProviderQuery(
        name="a",
        id=TREE,
        group=Group(
            in_tree=TREE,
            resources={"VCPU": 1},
            required=(("HW_A",),),
            forbidden=("HW_B",),
            member_of=((A, B),),
        ),
    )
    assert traits_named((query.group,)) == {"HW_A", "HW_B"}


def test_of_several_amounts_or_trees_of_providers_the_last_counts() -> None:
    query = providers(f"resources=VCPU&resources=VCPU:1&in_tree=x&in_tree={TREE}")

    assert query.group == Group(in_tree=TREE, resources={"VCPU": 1})


def test_every_trait_of_a_query_is_named_whatever_it_is_there_for() -> None:
    query = candidates("resources=VCPU:1&required=in:A,B&required=!C&root_required=D,!E")

    traits = traits_named(query.groups, *query.root_required, *query.root_forbidden)
    assert traits == {"A", "B", "C", "D", "E"}


@pytest.mark.parametrize(
    ("validator", "query", "said"),
    [
        (queries.CANDIDATES.at((1, 10)), "resources=a&limit=1", "'limit' was unexpected"),
        (
            queries.CANDIDATES.at((1, 25)),
            "resources01=a",
            "'resources01' does not match any of the regexes",
        ),
        (queries.CANDIDATES.at((1, 33)), "resources%0A=a", "ends in a line break"),
        (queries.CANDIDATES.at((1, 36)), "resources=a&limit=0", "'0' does not match"),
        (queries.CANDIDATES.at((1, 36)), "resources=a&limit=1%0A", "does not match"),
        (queries.CANDIDATES.at((1, 36)), "group_policy=x", "'x' is not one of ['none', 'isolate']"),
        (queries.USAGES.at((1, 38)), "user_id=ann", "'project_id' is a required property"),
        (queries.PROVIDERS.at((1, 0)), "name=%00", "NUL"),
    ],
)
def test_keys_are_refused_by_their_schema_with_the_value(validator: Validator, query: str, said: str) -> None:
    with pytest.raises(ApiError) as caught:
        validator.query(parse_qsl(query, keep_blank_values=True))

    assert said in caught.value.detail
