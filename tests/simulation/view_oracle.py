"""Compares the view that answers reads with the books: it is never older than allowed, and has nothing that was
deleted.
"""

from collections.abc import Iterator

from msgspec import structs

from engine.candidates.query import CandidatesQuery, Group
from engine.candidates.search import find_candidates
from engine.inventories import ProviderState
from placement_worker.view import ProviderReplica, ProviderView
from tests.simulation.findings import Findings
from tests.simulation.plan import AGGREGATES, TRAITS
from tests.simulation.stored_books import InspectableStore

PROMISE = "a read sees every committed write"
QUERIES = (
    CandidatesQuery(groups=(Group(resources={"VCPU": 2, "MEMORY_MB": 1024}),)),
    CandidatesQuery(groups=(Group(resources={"VCPU": 1, "DISK_GB": 20}),)),
    CandidatesQuery(groups=(Group(resources={"VCPU": 1}, required=(TRAITS[:1],)),)),
    CandidatesQuery(groups=(Group(resources={"VCPU": 1}, member_of=(AGGREGATES[:1],)),)),
    CandidatesQuery(
        groups=(Group(suffix="_A", resources={"VCPU": 1}), Group(suffix="_B", resources={"MEMORY_MB": 256})),
        group_policy="none",
        same_subtree=(("_A", "_B"),),
    ),
)


async def caught_up_replica(
    view: ProviderView, books: InspectableStore, findings: Findings
) -> ProviderReplica:
    """The view after it has caught up. If no transaction has committed meanwhile, it equals the books exactly."""
    async with books.committed() as rows:
        known = {state.internal: state.revision for state in rows.states_of(rows.providers)}
        logged = rows.writes
    replica = await view.caught_up()
    async with books.committed() as rows:
        if is_same := rows.writes == logged:
            for wrong in differences(replica, books):
                findings.breaks(PROMISE, wrong)
        else:
            for state in replica:
                if state.revision < known.get(state.internal, 0):
                    findings.breaks(
                        PROMISE, f"the view has {state.name} at the outdated revision {state.revision}"
                    )
    findings.count("view", "compared" if is_same else "compared while others wrote")
    return replica


def differences(replica: ProviderReplica, books: InspectableStore) -> Iterator[str]:
    states = {state.id: _comparable(state) for state in books.rows.states_of(books.rows.providers)}
    seen = {state.id: _comparable(state) for state in replica}
    for provider in sorted(states.keys() | seen.keys()):
        if states.get(provider) != seen.get(provider):
            yield f"{provider} is {seen.get(provider)!r} in the view and {states.get(provider)!r} in the books"


def _comparable(state: ProviderState) -> ProviderState:
    """The provider's state, as far as view and books must agree. Only the root knows its tree's shape. Its other
    providers show the shape of their last write, which is not compared.
    """
    return state if state.parent is None else structs.replace(state, shape=0)


def compare_candidates(replica: ProviderReplica, books: InspectableStore, findings: Findings) -> None:
    """The view finds the same candidates as a replica that is built from all pages at once."""
    if any(differences(replica, books)):
        return  # other transactions have written since
    anew = ProviderReplica()
    anew.merge(books.rows.states_of(books.rows.providers))
    for query in QUERIES:
        here, there = _found(replica, query), _found(anew, query)
        if here != there:
            findings.breaks(PROMISE, f"{query!r} finds {len(here)} candidates, {len(there)} in the books")
        findings.count("candidates", "found" if here else "none")


def _found(replica: ProviderReplica, query: CandidatesQuery) -> set[object]:
    index = replica.index
    return {
        (frozenset(each.amounts), frozenset(each.mappings.items()))
        for each in find_candidates(index, query).written_out(index)
    }
