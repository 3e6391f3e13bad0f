"""Adds hosts to an aggregate and removes them. Placement stores which hosts these are: each provider names its
aggregates.

A write replaces all aggregates of a provider. So the write names the provider's generation from the picture: if
somebody else has changed the provider meanwhile, placement refuses the write, and it is made anew.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from uuid import UUID

from bus.errors import Transient, WrongAnswer
from bus.message import AggregateId, Message, ProviderId
from bus.messages.administration import (
    GenerationMoved,
    ProviderWritten,
    SetAggregates,
    UnknownProvider,
    WriteAnswered,
)
from bus.messages.hosts import cell_and_name, names_clash
from bus.messages.placement import NotAllowed
from scheduler_worker.core.aggregates.metadata import AggregateProblem
from scheduler_worker.core.picture.picture import Picture

AskAll = Callable[[Sequence[Message]], Awaitable[Sequence[Message]]]

# Claims move generations, too: on a busy host some tries fail.
TRIES_MAX = 20
AGGREGATES_PER_PROVIDER_MAX = 400


class AggregateMembership:
    def __init__(self, picture: Picture, ask_all: AskAll, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._picture = picture
        self._ask_all = ask_all
        self.catch_up = catch_up

    def find(self, field: str, named: Iterable[str]) -> dict[str, ProviderId] | AggregateProblem:
        """The hosts with these names or ids, by the words with which the order names them; or the first problem with
        one of them.
        """
        found: dict[str, ProviderId] = {}
        for each in named:
            hosts = self._hosts(each)
            if len(hosts) != 1:
                cells = self._picture.cells_named(each)
                reason = (
                    f"{len(hosts)} hosts have this name: give the id"
                    if len(hosts) > 1 and len(cells) <= 1
                    else names_clash(each, cells)
                    if hosts
                    else "no host of this name is known"
                )
                return AggregateProblem(field, each, reason)
            if not self._picture.has_provider(hosts[0]):
                return AggregateProblem(field, each, "placement has no provider of it yet")
            found[each] = hosts[0]
        return found

    def _hosts(self, named: str) -> list[ProviderId]:
        columns = self._picture.columns
        plain = cell_and_name(named)[1]
        rows = [
            row for row in self._picture.rows_named(named.lower()) if columns.names[row] in (named, plain)
        ]
        if rows:
            return [columns.ids[row] for row in rows]
        try:
            host = ProviderId(UUID(named))
        except ValueError:
            return []
        return [host] if self._picture.row_of(host) >= 0 else []

    def of(self, hosts: Mapping[str, ProviderId]) -> dict[str, tuple[AggregateId, ...]]:
        """The aggregates that each of these hosts is in."""
        return {name: self._picture.aggregates_of(host) for name, host in hosts.items()}

    def hosts_in(self, aggregate: AggregateId) -> dict[str, ProviderId]:
        columns = self._picture.columns
        return {columns.names[row]: columns.ids[row] for row in self._picture.members_of(aggregate)}

    async def change(
        self,
        aggregate: AggregateId,
        add: Mapping[str, ProviderId],
        remove: Mapping[str, ProviderId],
        check: Callable[[Collection[str]], Awaitable[AggregateProblem | None]],
    ) -> AggregateProblem | None:
        """Add hosts to the aggregate, and remove others. Returns the problem that prevents this, or None.

        `check` returns a problem with adding the hosts that are not in the aggregate yet, or None. It is asked again
        before each write, since other writes may have changed its answer.
        """
        for _ in range(TRIES_MAX):
            writes = {
                **{
                    ("add_hosts", name): self._write(host, aggregate, adds=True) for name, host in add.items()
                },
                **{
                    ("remove_hosts", name): self._write(host, aggregate, adds=False)
                    for name, host in remove.items()
                },
            }
            due = {named: write for named, write in writes.items() if write is not None}
            if not due:
                return None
            if problem := await check([name for field, name in due if field == "add_hosts"]):
                return problem
            for (field, name), write in due.items():
                if len(write.aggregates) > AGGREGATES_PER_PROVIDER_MAX:
                    return AggregateProblem(
                        field, name, f"it is in {AGGREGATES_PER_PROVIDER_MAX} aggregates already"
                    )
            answers = await self._ask_all(list(due.values()))
            await self.catch_up()
            for (field, name), answer in zip(due, answers, strict=True):
                if reason := _why_refused(answer):
                    return AggregateProblem(field, name, reason)
        raise Transient(
            f"hosts of aggregate {aggregate} changed during each of {TRIES_MAX} tries to write them"
        )

    def _write(self, host: ProviderId, aggregate: AggregateId, *, adds: bool) -> SetAggregates | None:
        """The write that adds the host to the aggregate or removes it; None if nothing is to be written."""
        now = self._picture.aggregates_of(host)
        if (aggregate in now) is adds:
            return None
        after = (*now, aggregate) if adds else [each for each in now if each != aggregate]
        return SetAggregates(
            provider=host,
            generation=self._picture.trees.generation_of(host),
            aggregates=tuple(sorted(after)),
        )


def _why_refused(answer: Message) -> str:
    """Why placement refused to write a host's aggregates; empty if it has written them, or the write must be repeated."""
    if not isinstance(answer, WriteAnswered):
        raise WrongAnswer(f"placement answered a write of aggregates by {answer!r}")
    match answer.verdict:
        case ProviderWritten() | GenerationMoved():
            return ""
        case UnknownProvider():
            return "placement has no provider of it any more"
        case NotAllowed(field, reason):
            return f"placement does not allow it: {field}: {reason}"
        case _:
            raise WrongAnswer(f"placement answered a write of aggregates by {answer.verdict!r}")
