"""What reads are answered from, beside the books: nothing is older than it may be, nothing is there that has gone."""

from collections.abc import Iterator

from msgspec import structs

from bus.messages.placement import ProviderState
from placement_worker.core.candidates.query import CandidatesQuery, Group
from placement_worker.core.candidates.search import find_candidates
from placement_worker.replica import Replica
from placement_worker.view import View
from tests.simulation.estate import GROUPS, LABELS
from tests.simulation.findings import Findings
from tests.simulation.register import OpenBooks

PROMISE = "a read sees every committed write"
QUERIES = (
    CandidatesQuery(groups=(Group(resources={"VCPU": 2, "MEMORY_MB": 1024}),)),
    CandidatesQuery(groups=(Group(resources={"VCPU": 1, "DISK_GB": 20}),)),
    CandidatesQuery(groups=(Group(resources={"VCPU": 1}, required=(LABELS[:1],)),)),
    CandidatesQuery(groups=(Group(resources={"VCPU": 1}, member_of=(GROUPS[:1],)),)),
    CandidatesQuery(
        groups=(Group(suffix="_A", resources={"VCPU": 1}), Group(suffix="_B", resources={"MEMORY_MB": 256})),
        group_policy="none",
        same_subtree=(("_A", "_B"),),
    ),
)


async def looked_into(view: View, books: OpenBooks, findings: Findings) -> Replica:
    """Caught up. If nobody has committed meanwhile, it is what the books are, to the last number."""
    async with books.committed() as rows:
        known = {state.internal: state.revision for state in rows.states_of(rows.providers)}
        logged = rows.logged
    replica = await view.caught_up()
    async with books.committed() as rows:
        if is_same := rows.logged == logged:
            for wrong in differences(replica, books):
                findings.breaks(PROMISE, wrong)
        else:
            for state in replica:
                if state.revision < known.get(state.internal, 0):
                    findings.breaks(PROMISE, f"{state.name} is seen as it was at {state.revision}")
    findings.see("view", "looked into" if is_same else "looked into while others wrote")
    return replica


def differences(replica: Replica, books: OpenBooks) -> Iterator[str]:
    states = {state.id: _telling(state) for state in books.rows.states_of(books.rows.providers)}
    seen = {state.id: _telling(state) for state in replica}
    for provider in sorted(states.keys() | seen.keys()):
        if states.get(provider) != seen.get(provider):
            yield f"{provider} is seen as {seen.get(provider)!r}, and is {states.get(provider)!r}"


def _telling(state: ProviderState) -> ProviderState:
    """A tree's shape is its root's to tell: of its other providers it is as old as they are."""
    return state if state.parent is None else structs.replace(state, shape=0)


def as_the_books(replica: Replica, books: OpenBooks, findings: Findings) -> None:
    """What is found in it is what is found in one that is made of all pages at once."""
    if any(differences(replica, books)):
        return  # others have written since
    anew = Replica()
    anew.tell(books.rows.states_of(books.rows.providers))
    for query in QUERIES:
        here, there = _found(replica, query), _found(anew, query)
        if here != there:
            findings.breaks(PROMISE, f"{query!r} finds {len(here)} candidates, {len(there)} in the books")
        findings.see("candidates", "found" if here else "none")


def _found(replica: Replica, query: CandidatesQuery) -> set[object]:
    woods = replica.woods
    return {
        (frozenset(each.amounts), frozenset(each.mappings.items()))
        for each in find_candidates(woods, query).written_out(woods)
    }
