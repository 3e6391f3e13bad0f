"""One audit: it names the cells that do not answer, drops faults that pass, and says why a mend is refused."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.administration import ConsumerMoved, Done, WriteAnswered, WriteVerdict
from bus.messages.books import (
    AskBooks,
    AskCellBooks,
    AskContradictions,
    AskHostBooks,
    BooksFound,
    CellBooksFound,
    ContradictionsFound,
    HostBooksFound,
    MendConsumer,
)
from bus.messages.build import AskInstances, InstancesFound
from bus.messages.placement import AskSnapshot, DoesNotFit, LogPosition, Shortfall, SnapshotPage
from bus.workers.asking import NoAnswer
from moor.books import judging
from moor.books.auditing import AuditOptions, AuditResult, audited
from moor.books.reading import BooksReader
from moor.books.views import View
from tests.properties.test_audit_properties import HOSTS, NOW, PLACES, a_view

pytestmark = pytest.mark.asyncio


def a_consumer(**changes: object) -> View:
    view = a_view()
    assert view.consumer is not None
    return structs.replace(view, consumer=structs.replace(view.consumer, **changes))


HARMED = a_consumer(user="bob")
SHORT = Shortfall(provider=HOSTS[0], resource="VCPU", asked=2, free=1)


class Everyone:
    """Answers for all of them, from the view as it is at each look."""

    def __init__(
        self, *views: View, verdict: WriteVerdict | None = None, silent: type[Message] | None = None
    ) -> None:
        self._views = views
        self._looks = 0
        self._verdict = verdict or Done()
        self._silent = silent
        self.given: list[Message] = []

    async def ask(self, question: Message) -> Message:  # noqa: PLR0911 - one for each question
        if self._silent is not None and isinstance(question, self._silent):
            raise NoAnswer("nobody answers")
        # Each look begins with the question to placement.
        self._looks += isinstance(question, AskBooks)
        view = self._views[min(self._looks, len(self._views)) - 1]
        match question:
            case AskBooks():
                return BooksFound(consumers=(view.consumer,) if view.consumer else ())
            case AskInstances():
                return InstancesFound(instances=(view.at_api,) if view.at_api else ())
            case AskCellBooks():
                return CellBooksFound(
                    entries=tuple(each for each in view.in_cells if each.instance.cell == question.cell)
                )
            case AskHostBooks():
                there = tuple(each.entry for each in view.on_hosts if each.cell == question.cell)
                return HostBooksFound(entries=there, asked=question.hosts)
            case AskContradictions():
                return ContradictionsFound(contradictions=())
            case AskSnapshot():
                return SnapshotPage(providers=tuple(PLACES.providers.values()), published=LogPosition(0, 0))
            case MendConsumer():
                self.given.append(question)
                return WriteAnswered(verdict=self._verdict)
            case _:
                raise AssertionError(question)

    async def send(self, message: Message) -> None:
        self.given.append(message)


async def audit(everyone: Everyone, *, heals: bool = False, cell: str = "") -> AuditResult:
    reader = BooksReader(everyone, dict.fromkeys(("c1", "c2"), everyone), ("c1", "c2"))
    options = AuditOptions(settle=timedelta(minutes=1), heals=heals, cell=cell)
    return await audited(reader, options, clock=lambda: NOW)


async def test_a_fault_counts_if_both_looks_see_the_same_rows() -> None:
    stands = await audit(Everyone(HARMED))
    moved = a_consumer(user="bob", generation=2, attempt=2)
    passes = [await audit(Everyone(HARMED, later)) for later in (a_view(), moved)]

    assert [each.fault.kind for each in stands.findings] == [judging.USER]
    assert [each.findings for each in passes] == [(), ()]


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (DoesNotFit(shortfalls=(SHORT,)), "no room: VCPU of host-100: asked 2, free 1"),
        (
            ConsumerMoved(consumer=HARMED.id, seen=1, current=2),
            "it has changed meanwhile: the next audit looks again",
        ),
    ],
)
async def test_a_mend_that_is_refused_says_why(verdict: WriteVerdict, why: str) -> None:
    result = await audit(Everyone(HARMED, verdict=verdict), heals=True)

    assert [(each.outcome, each.why) for each in result.findings] == [("not mended", why)]
    assert not result.is_all_mended


@pytest.mark.parametrize(
    ("silent", "unanswered", "harm"),
    [
        (AskCellBooks, ["the conductor of cell c1", "the conductor of cell c2"], lambda view: view),
        (
            AskHostBooks,
            ["the compute of cell c1", "the compute of cell c2"],
            lambda view: structs.replace(view, on_hosts=()),
        ),
    ],
)
async def test_who_does_not_answer_is_named_and_nothing_of_theirs_is_judged(
    silent: type[Message], unanswered: list[str], harm: Callable[[View], View]
) -> None:
    view = harm(HARMED if silent is AskCellBooks else a_view())

    result = await audit(Everyone(view, silent=silent), heals=True)

    assert (result.findings, list(result.unanswered)) == ((), unanswered)
    assert result.in_flight == (silent is AskCellBooks)


async def test_an_audit_of_one_cell_counts_no_consumers_of_other_cells() -> None:
    alone = View(HARMED.id, consumer=a_view().consumer)

    compared = [(await audit(Everyone(alone), cell=cell)).compared for cell in ("c1", "c2", "")]

    assert compared == [1, 0, 1]
