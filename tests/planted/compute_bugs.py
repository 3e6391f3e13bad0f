"""Planted bugs in computes: which builds begin, what is told and reported of hosts, and what the store keeps."""

from datetime import timedelta
from typing import Any

from msgspec import structs

from bus.messages.placement import ReportOutdated
from compute_sim import guests, handlers, reporting, wiring
from compute_sim.core import attempts, hosts, trees
from compute_sim.core.attempts import AttemptState
from compute_sim.core.trees import Accepted, ReportState
from compute_sim.handlers import BuildSlots, ComputeStore, Fleet
from compute_sim.reporting import AttemptLister, FleetAnnouncer
from compute_sim.store_sql import SqlComputeStore
from tests.planted.replacing import planted, planted_by

# An answer that the broker did not take is not due again.
planted_by("an answer of a host that cannot be sent is lost", ComputeStore, "due_again")(
    lambda _real: lambda _self, _keys, _at_s: None
)


# A host begins a build while it has as many as it may have.
@planted("a host has one build more at once than it may", BuildSlots, "is_free")
def one_build_too_many(real: Any, self: Any, host: Any) -> Any:
    self._most += bool(self._most)
    try:
        return real(self, host)
    finally:
        self._most -= bool(self._most)


# Of the builds that wait on a host, the one that came last begins first.
planted_by("the build that waits longest begins last", ComputeStore, "waiting")(
    lambda real: lambda self, host: [*reversed(real(self, host))]
)


# The end of a build that fails begins no build that waits.
@planted("a build that fails lets none that waits begin", BuildSlots, "changed")
def failed_build_lets_none_begin(real: Any, self: Any, before: Any, after: Any) -> None:
    if after.state is not AttemptState.FAILED:
        real(self, before, after)


# A build that succeeds leaves the count of those that failed before it.
@planted("a host never forgets its failed builds", Fleet, "count_build")
def failed_builds_kept(real: Any, self: Any, before: Any, after: Any) -> None:
    if after.state is not AttemptState.BUILT:
        real(self, before, after)


# The first attempt of each page but the first is not listed.
@planted(
    "an attempt is lost between two pages of a host's attempts", (hosts, handlers, reporting), "holdings"
)
def first_of_later_pages_lost(real: Any, order: Any, *some: Any, **limit: Any) -> Any:
    page = real(order, *some, **limit)
    return page if order.after is None else structs.replace(page, attempts=page.attempts[1:])


# A question for a console is answered however long ago it was asked.
@planted_by("a question for a console is answered days later", (guests, wiring), "console_handlers")
def old_questions_answered(real: Any) -> Any:
    return lambda fleet, store, clock: real(fleet, store, lambda: clock() - timedelta(days=1))


# A page of an audit ends within the attempts of an instance, and the next page begins after it.
@planted("a page of an audit cuts the attempts of an instance", ComputeStore, "living")
async def instance_cut_by_a_page(real: Any, self: Any, instances: Any, after: Any, limit: int) -> Any:
    return (await real(self, instances, after, limit))[:limit]


# Heartbeats name the hosts that cannot send, too.
planted_by("a silent host sends heartbeats", FleetAnnouncer, "alive")(
    lambda _real: lambda self: {self._cell: [*self._fleet]}
)


# A host that was silent does not list its attempts when it can send again.
planted_by("a host that was silent does not list what it has", AttemptLister, "touch")(
    lambda _real: lambda _self, _hosts: None
)


# The facts about a host do not say why placement refuses its report.
@planted("a host does not tell why its report is refused", reporting, "facts_of")
def refusal_not_told(real: Any, *known: Any, **named: Any) -> Any:
    return structs.replace(real(*known, **named), report_refused="")


# A report does not name the providers that the tree has no more.
@planted("a provider that a host has no more stays", (trees, reporting), "report_of_changes")
def removed_not_reported(real: Any, *known: Any) -> Any:
    report = real(*known)
    return report and structs.replace(report, removed=())


# A report that is older than another reporter's counts as accepted.
@planted("the report of another reporter counts as one's own", (trees, reporting), "after_answer")
def foreign_report_taken_as_own(real: Any, report: Any, tree: Any, verdict: Any) -> Any:
    if isinstance(verdict, ReportOutdated):
        return Accepted(ReportState(tree, verdict.sequence))
    return real(report, tree, verdict)


# The tree for a reshape lacks the providers that an administrator has made.
planted_by("a reshape forgets the providers made by name", reporting, "with_made_by_name")(
    lambda _real: lambda tree, _states: tree
)


# The answer to a repeated order to save an instance does not name the image.
@planted_by("an image that was saved is not told again", (attempts, handlers), "answered_again")
def saved_image_not_told_again(real: Any) -> Any:
    return lambda *known, **named: structs.replace(real(*known, **named), image="")


# What the table has counts as answered.
@planted("a restart loses the answers that are due", SqlComputeStore, "read")
async def answers_lost_by_a_restart(real: Any, self: Any) -> None:
    await real(self)
    known = [*self._attempts.values()]
    await ComputeStore.save(self, [structs.replace(each, due_s=None) for each in known])


# What is forgotten in memory stays in the table.
planted_by("attempts that ended stay in the table for ever", SqlComputeStore, "forget")(
    lambda _real: ComputeStore.forget
)
