"""Planted bugs in computes: which builds begin, what is told and reported of hosts, and what the store keeps."""

from contextlib import AbstractContextManager
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
from tests.planted.replacing import PlantedBug, replaced, replaced_in


def unsent_answers_forgotten() -> AbstractContextManager[None]:
    """An answer that the broker did not take is not due again."""
    return replaced(ComputeStore, "due_again", lambda _real: lambda _self, _keys, _at_s: None)


def one_build_too_many() -> AbstractContextManager[None]:
    """A host begins a build while it has as many as it may have."""

    def planted(real: Any) -> Any:
        def is_free(self: Any, host: Any) -> Any:
            self._most += bool(self._most)
            try:
                return real(self, host)
            finally:
                self._most -= bool(self._most)

        return is_free

    return replaced(BuildSlots, "is_free", planted)


def latest_build_first() -> AbstractContextManager[None]:
    """Of the builds that wait on a host, the one that came last begins first."""
    return replaced(ComputeStore, "waiting", lambda real: lambda self, host: [*reversed(real(self, host))])


def failed_build_lets_none_begin() -> AbstractContextManager[None]:
    """The end of a build that fails begins no build that waits."""

    def planted(real: Any) -> Any:
        def changed(self: Any, before: Any, after: Any) -> None:
            if after.state is not AttemptState.FAILED:
                real(self, before, after)

        return changed

    return replaced(BuildSlots, "changed", planted)


def failed_builds_kept() -> AbstractContextManager[None]:
    """A build that succeeds leaves the count of those that failed before it."""

    def planted(real: Any) -> Any:
        def count_build(self: Any, before: Any, after: Any) -> None:
            if after.state is not AttemptState.BUILT:
                real(self, before, after)

        return count_build

    return replaced(Fleet, "count_build", planted)


def first_of_later_pages_lost() -> AbstractContextManager[None]:
    """The first attempt of each page but the first is not listed."""

    def planted(real: Any) -> Any:
        def holdings(order: Any, *some: Any, **limit: Any) -> Any:
            page = real(order, *some, **limit)
            return page if order.after is None else structs.replace(page, attempts=page.attempts[1:])

        return holdings

    return replaced_in((hosts, handlers, reporting), "holdings", planted)


def old_questions_answered() -> AbstractContextManager[None]:
    """A question for a console is answered however long ago it was asked."""

    def planted(real: Any) -> Any:
        return lambda fleet, store, clock: real(fleet, store, lambda: clock() - timedelta(days=1))

    return replaced_in((guests, wiring), "console_handlers", planted)


def instance_cut_by_a_page() -> AbstractContextManager[None]:
    """A page of an audit ends within the attempts of an instance, and the next page begins after it."""

    def planted(real: Any) -> Any:
        async def living(self: Any, instances: Any, after: Any, limit: int) -> Any:
            return (await real(self, instances, after, limit))[:limit]

        return living

    return replaced(ComputeStore, "living", planted)


def silent_hosts_beat() -> AbstractContextManager[None]:
    """Heartbeats name the hosts that cannot send, too."""
    return replaced(FleetAnnouncer, "alive", lambda _real: lambda self: {self._cell: [*self._fleet]})


def silence_not_listed() -> AbstractContextManager[None]:
    """A host that was silent does not list its attempts when it can send again."""
    return replaced(AttemptLister, "touch", lambda _real: lambda _self, _hosts: None)


def refusal_not_told() -> AbstractContextManager[None]:
    """The facts about a host do not say why placement refuses its report."""

    def planted(real: Any) -> Any:
        def facts_of(*known: Any, **named: Any) -> Any:
            return structs.replace(real(*known, **named), report_refused="")

        return facts_of

    return replaced(reporting, "facts_of", planted)


def removed_not_reported() -> AbstractContextManager[None]:
    """A report does not name the providers that the tree has no more."""

    def planted(real: Any) -> Any:
        def report_of_changes(*known: Any) -> Any:
            report = real(*known)
            return report and structs.replace(report, removed=())

        return report_of_changes

    return replaced_in((trees, reporting), "report_of_changes", planted)


def foreign_report_taken_as_own() -> AbstractContextManager[None]:
    """A report that is older than another reporter's counts as accepted."""

    def planted(real: Any) -> Any:
        def after_answer(report: Any, tree: Any, verdict: Any) -> Any:
            if isinstance(verdict, ReportOutdated):
                return Accepted(ReportState(tree, verdict.sequence))
            return real(report, tree, verdict)

        return after_answer

    return replaced_in((trees, reporting), "after_answer", planted)


def made_by_name_forgotten() -> AbstractContextManager[None]:
    """The tree for a reshape lacks the providers that an administrator has made."""
    return replaced(reporting, "with_made_by_name", lambda _real: lambda tree, _states: tree)


def saved_image_not_told_again() -> AbstractContextManager[None]:
    """The answer to a repeated order to save an instance does not name the image."""

    def planted(real: Any) -> Any:
        return lambda *known, **named: structs.replace(real(*known, **named), image="")

    return replaced_in((attempts, handlers), "answered_again", planted)


def answers_lost_by_a_restart() -> AbstractContextManager[None]:
    """What the table has counts as answered."""

    def planted(real: Any) -> Any:
        async def read(self: Any) -> None:
            await real(self)
            known = [*self._attempts.values()]
            await ComputeStore.save(self, [structs.replace(each, due_s=None) for each in known])

        return read

    return replaced(SqlComputeStore, "read", planted)


def ended_attempts_stay_in_the_table() -> AbstractContextManager[None]:
    """What is forgotten in memory stays in the table."""
    return replaced(SqlComputeStore, "forget", lambda _real: ComputeStore.forget)


BUGS: dict[str, PlantedBug] = {
    "an answer of a host that cannot be sent is lost": unsent_answers_forgotten,
    "a host has one build more at once than it may": one_build_too_many,
    "the build that waits longest begins last": latest_build_first,
    "a build that fails lets none that waits begin": failed_build_lets_none_begin,
    "a host never forgets its failed builds": failed_builds_kept,
    "an attempt is lost between two pages of a host's attempts": first_of_later_pages_lost,
    "a question for a console is answered days later": old_questions_answered,
    "a page of an audit cuts the attempts of an instance": instance_cut_by_a_page,
    "a silent host sends heartbeats": silent_hosts_beat,
    "a host that was silent does not list what it has": silence_not_listed,
    "a host does not tell why its report is refused": refusal_not_told,
    "a provider that a host has no more stays": removed_not_reported,
    "the report of another reporter counts as one's own": foreign_report_taken_as_own,
    "a reshape forgets the providers made by name": made_by_name_forgotten,
    "an image that was saved is not told again": saved_image_not_told_again,
    "a restart loses the answers that are due": answers_lost_by_a_restart,
    "attempts that ended stay in the table for ever": ended_attempts_stay_in_the_table,
}
