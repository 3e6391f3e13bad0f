"""The text of candidates is right at every version, and describes the providers as they are now."""

import json
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from engine.candidates.budget import Budget
from engine.candidates.query import CandidatesQuery, FoundCandidates, Group
from engine.candidates.search import find_candidates
from engine.inventories import AggregateId, InventoryState, ProviderId, ProviderState, ProviderUsage
from placement_worker.api.candidates import Summaries, listed, requests_text
from placement_worker.view import ProviderReplica

RACK = AggregateId(UUID(int=99))


def an_id(number: int) -> ProviderId:
    return ProviderId(UUID(int=number))


POOL = 5
# Many candidates of one pattern are written as an array, and few one by one.
SIZES = pytest.mark.parametrize("hosts", [3, 40])


def forest(hosts: int = 3) -> ProviderReplica:
    """Some hosts, each with two network cards as children, and a pool of disks that all of them share."""
    replica = ProviderReplica()
    for number in range(10, 10 + 10 * hosts, 10):
        replica.merge(
            [
                a_provider(number, VCPU=8, traits=("HW_CPU_X86_VMX", "CUSTOM_A"), aggregates=(RACK,)),
                a_provider(number + 1, root=number, VF=4),
                a_provider(number + 2, root=number, VF=4),
            ]
        )
    replica.merge([a_provider(POOL, DISK_GB=100, traits=("MISC_SHARES_VIA_AGGREGATE",), aggregates=(RACK,))])
    return replica


def a_provider(
    number: int,
    root: int = 0,
    traits: tuple[str, ...] = (),
    aggregates: tuple[AggregateId, ...] = (),
    **totals: int,
) -> ProviderState:
    return ProviderState(
        internal=number,
        id=an_id(number),
        name=f"provider-{number}",
        root=an_id(root or number),
        parent=an_id(root) if root else None,
        revision=1,
        inventories={resource: InventoryState(total=total) for resource, total in totals.items()},
        traits=traits,
        aggregates=aggregates,
    )


QUERIES = {
    "one provider": CandidatesQuery(groups=(Group(resources={"VCPU": 2}),)),
    "sharing": CandidatesQuery(groups=(Group(resources={"VCPU": 2, "DISK_GB": 5}),)),
    "granular": CandidatesQuery(
        groups=(
            Group(resources={"VCPU": 1}),
            Group(suffix="_A", resources={"VF": 1}),
            Group(suffix="_B", resources={"VF": 2}),
        ),
        group_policy="none",
    ),
    "without resources": CandidatesQuery(
        groups=(
            Group(suffix="_H", required=(("CUSTOM_A",),)),
            Group(suffix="_A", resources={"VF": 1}),
        ),
        group_policy="none",
        same_subtree=(("_H", "_A"),),
    ),
    "nothing": CandidatesQuery(groups=(Group(resources={"VCPU": 200}),)),
}


@pytest.fixture(params=QUERIES.values(), ids=list(QUERIES))
def query(request: pytest.FixtureRequest) -> CandidatesQuery:
    chosen: CandidatesQuery = request.param
    return chosen


def requests(found: FoundCandidates, replica: ProviderReplica, version: tuple[int, int]) -> list[Any]:
    text = b"".join(listed(requests_text(found, replica.index, version, Budget())))
    said: list[Any] = json.loads(b"[%b]" % text)
    return said


def summaries(
    of: Summaries, found: FoundCandidates, replica: ProviderReplica, version: tuple[int, int], *classes: str
) -> dict[str, Any]:
    texts = of.texts(found.giving, replica.index, version, classes, Budget())
    said: dict[str, Any] = json.loads(b"{%b}" % b"".join(listed(texts)))
    return said


@SIZES
def test_from_1_34_on_each_candidate_has_its_mappings(hosts: int, query: CandidatesQuery) -> None:
    replica = forest(hosts)
    found = find_candidates(replica.index, query)

    expected = []
    for candidate in found.written_out(replica.index):
        allocations: dict[str, Any] = {}
        for amount in candidate.amounts:
            row = allocations.setdefault(str(amount.provider), {"resources": {}})
            row["resources"][amount.resource] = amount.amount
        mappings = {suffix: [str(one) for one in them] for suffix, them in candidate.mappings.items()}
        expected.append({"allocations": allocations, "mappings": mappings})

    assert requests(found, replica, (1, 34)) == expected


@SIZES
def test_before_1_34_candidates_have_no_mappings_and_before_1_12_they_are_a_list(
    hosts: int, query: CandidatesQuery
) -> None:
    replica = forest(hosts)
    found = find_candidates(replica.index, query)
    newest = requests(found, replica, (1, 34))

    assert requests(found, replica, (1, 12)) == [{"allocations": one["allocations"]} for one in newest]
    assert requests(found, replica, (1, 11)) == [
        {
            "allocations": [
                {"resource_provider": {"uuid": provider}, **held}
                for provider, held in one["allocations"].items()
            ]
        }
        for one in newest
    ]


def test_summaries_have_whole_trees_from_1_29_on_and_only_used_providers_before() -> None:
    replica = forest()
    found = find_candidates(replica.index, QUERIES["sharing"])
    hosts = {str(an_id(number)) for number in (10, 20, 30)}
    cards = {str(an_id(number + card)) for number in (10, 20, 30) for card in (1, 2)}
    pool = {str(an_id(POOL))}

    assert summaries(Summaries(), found, replica, (1, 29)).keys() == hosts | cards | pool
    assert summaries(Summaries(), found, replica, (1, 28)).keys() == hosts | pool


def test_a_summary_has_more_fields_from_version_to_version() -> None:
    replica = forest()
    found = find_candidates(replica.index, QUERIES["one provider"])
    host = str(an_id(10))

    def at(minor: int) -> Any:
        return summaries(Summaries(), found, replica, (1, minor), "VCPU")[host]

    vcpu = {"VCPU": {"capacity": 8, "used": 0}}
    traits = ["HW_CPU_X86_VMX", "CUSTOM_A"]
    assert at(10) == {"resources": vcpu}
    assert at(17) == {"resources": vcpu, "traits": traits}
    assert at(29) == {
        "resources": vcpu,
        "traits": traits,
        "parent_provider_uuid": None,
        "root_provider_uuid": host,
    }


def test_before_1_27_summaries_have_only_the_classes_that_were_asked_for() -> None:
    replica = ProviderReplica()
    replica.merge([a_provider(1, VCPU=8, MEMORY_MB=512)])
    found = find_candidates(replica.index, QUERIES["one provider"])

    (before,) = summaries(Summaries(), found, replica, (1, 26), "VCPU").values()
    (after,) = summaries(Summaries(), found, replica, (1, 27), "VCPU").values()

    assert before["resources"].keys() == {"VCPU"}
    assert after["resources"].keys() == {"VCPU", "MEMORY_MB"}


def test_a_cached_summary_is_rewritten_when_its_provider_changes() -> None:
    replica, kept = forest(), Summaries()
    host = str(an_id(10))

    def the_host() -> Any:
        found = find_candidates(replica.index, QUERIES["one provider"])
        return summaries(kept, found, replica, (1, 39))[host]

    assert the_host()["resources"]["VCPU"]["used"] == 0
    replica.use([ProviderUsage(internal=10, id=an_id(10), base=1, revision=2, used={"VCPU": 3})])
    assert the_host()["resources"]["VCPU"]["used"] == 3

    changed = a_provider(10, VCPU=6, traits=("CUSTOM_B",), aggregates=(RACK,))
    replica.merge([structs.replace(changed, revision=3, shape=2)])
    assert the_host()["traits"] == ["CUSTOM_B"]
    replica.merge([a_provider(number, VCPU=4) for number in range(100, 300)])
    assert the_host()["resources"]["VCPU"] == {"capacity": 6, "used": 0}
