"""The audit never frees what a running Nova holds, and frees what Nova never knew once the time between two looks is over."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
import typer
from msgspec import structs

from bus.message import Message
from bus.messages.administration import Done, WriteAnswered
from bus.messages.audit import (
    AskBooks,
    AskCellBooks,
    AskContradictions,
    AskHostBooks,
    BookEntry,
    BooksFound,
    CellBooksFound,
    ContradictionsFound,
    HostBooksFound,
    MendConsumer,
    SeenConsumer,
)
from bus.messages.build import AskInstances, InstancesFound
from bus.messages.placement import AskSnapshot, LogPosition, SnapshotPage
from engine.inventories import ConsumerId, ResourceAmount
from kit.errors import WrongAnswer
from moor.books.auditing import AuditOptions, AuditResult, audited
from moor.books.books_reader import BooksReader
from moor.books.rules import UNKNOWN, FirstLook, HoldersAsked, NovaToAsk
from nova_bridge.in_moor import LooksInFile
from tests.nova.simulated_api import SimulatedNova
from tests.properties.test_audit_properties import HOSTS, NOW, PLACES

pytestmark = pytest.mark.asyncio

WAIT = timedelta(seconds=1900)
RUNNING, NEVER, MOVING, LEFT = (ConsumerId(UUID(int=number)) for number in (1, 2, 3, 4))


def held(id_: ConsumerId, **changes: object) -> BookEntry:
    entry = BookEntry(
        id=id_,
        type="INSTANCE",
        project="p",
        user="u",
        cell="",
        generation=1,
        attempt=1,
        host=HOSTS[0],
        held=(ResourceAmount(HOSTS[0], "VCPU", 2),),
    )
    return structs.replace(entry, **changes)


class Books:
    """Placement's consumers, and nothing anywhere else. An order to free one is obeyed."""

    def __init__(self, *entries: BookEntry) -> None:
        self.entries = {each.id: each for each in entries}
        self.freed: list[ConsumerId] = []

    async def ask(self, question: Message) -> Message:  # noqa: PLR0911 - one for each question
        match question:
            case AskBooks():
                wanted = question.consumers or sorted(self.entries)
                return BooksFound(consumers=tuple(self.entries[id_] for id_ in wanted if id_ in self.entries))
            case AskInstances():
                return InstancesFound(instances=())
            case AskCellBooks():
                return CellBooksFound(entries=())
            case AskHostBooks():
                return HostBooksFound(entries=(), asked=question.hosts)
            case AskContradictions():
                return ContradictionsFound(contradictions=())
            case AskSnapshot():
                return SnapshotPage(providers=tuple(PLACES.providers.values()), published=LogPosition(0, 0))
            case MendConsumer(claim=None):
                entry = self.entries.pop(question.consumer)
                assert question.seen == SeenConsumer(generation=entry.generation, attempt=entry.attempt)
                self.freed.append(question.consumer)
                return WriteAnswered(verdict=Done())
            case _:
                raise AssertionError(question)

    async def send(self, message: Message) -> None:
        raise AssertionError(message)


class Looks:
    def __init__(self) -> None:
        self.kept: Mapping[ConsumerId, FirstLook] = {}

    def load(self) -> Mapping[ConsumerId, FirstLook]:
        return self.kept

    def save(self, looks: Mapping[ConsumerId, FirstLook]) -> None:
        self.kept = looks


class Cloud:
    """A placement that a Nova uses, and audits of it by a clock that the test moves."""

    def __init__(self, *entries: BookEntry) -> None:
        self.books = Books(*entries)
        self.nova = SimulatedNova()
        self.looks = Looks()
        self.now = NOW
        self.name = "Nova"

    async def unknown(self, consumers: Collection[ConsumerId]) -> HoldersAsked:
        api = self.nova.api()
        try:
            return await api.unknown(consumers)
        finally:
            await api.close()

    async def audit(self, *, heals: bool = True, is_asked: bool = True, after_s: float = 0) -> AuditResult:
        self.now += timedelta(seconds=after_s)
        reader = BooksReader(self.books, dict.fromkeys(("c1", "c2"), self.books), ("c1", "c2"))
        nova = NovaToAsk(self, self.looks, WAIT) if is_asked else None
        options = AuditOptions(settle=timedelta(0), heals=heals)
        return await audited(reader, options, clock=self._clock, nova=nova)

    def _clock(self) -> datetime:
        return self.now


def outcomes(result: AuditResult) -> list[tuple[str, ConsumerId | None, str]]:
    return [(each.fault.kind, each.fault.about, each.outcome) for each in result.findings]


@pytest.mark.parametrize("kind", ["INSTANCE", "MIGRATION"])
@pytest.mark.parametrize("attempt", [0, 1])
async def test_without_a_nova_to_ask_what_it_holds_is_counted_and_never_freed(
    kind: str, attempt: int
) -> None:
    cloud = Cloud(held(RUNNING, type=kind, attempt=attempt), held(NEVER, type=kind))

    for after_s in (0, 1_000_000):
        result = await cloud.audit(is_asked=False, after_s=after_s)
        assert (outcomes(result), cloud.books.freed) == ([], [])
        assert result.nova is not None
        assert (result.nova.consumers, result.nova.amounts, result.nova.is_asked) == (2, {"VCPU": 4}, False)


async def test_what_nova_knows_stays_and_what_it_never_knew_is_freed_once_the_time_is_over() -> None:
    cloud = Cloud(held(RUNNING), held(NEVER), held(MOVING, type="MIGRATION"), held(LEFT, type="MIGRATION"))
    cloud.nova.servers = [RUNNING]
    cloud.nova.migrations = [MOVING]
    early = [(UNKNOWN, NEVER, "not mended"), (UNKNOWN, LEFT, "not mended")]

    assert outcomes(await cloud.audit()) == early
    assert outcomes(await cloud.audit(after_s=WAIT.total_seconds())) == early
    assert cloud.books.freed == []
    late = await cloud.audit(after_s=1)

    assert outcomes(late) == [(UNKNOWN, NEVER, "mended"), (UNKNOWN, LEFT, "mended")]
    assert cloud.books.freed == [NEVER, LEFT]
    assert outcomes(await cloud.audit(after_s=1)) == []
    assert cloud.looks.kept == {}


async def test_an_instance_that_was_deleted_softly_keeps_what_it_holds() -> None:
    cloud = Cloud(held(RUNNING))
    cloud.nova.softly_deleted = [RUNNING]

    for _ in range(3):
        assert outcomes(await cloud.audit(after_s=10_000)) == []
    assert cloud.books.freed == []


async def test_without_heal_it_is_found_and_stays() -> None:
    cloud = Cloud(held(NEVER))

    for _ in range(3):
        assert outcomes(await cloud.audit(heals=False, after_s=10_000)) == [(UNKNOWN, NEVER, "found")]
    assert cloud.books.freed == []


async def test_a_silent_cell_stops_all_frees_until_it_speaks_again() -> None:
    cloud = Cloud(held(RUNNING), held(NEVER))
    cloud.nova.servers = [RUNNING]
    cloud.nova.add_host(1, "h1")
    await cloud.audit()
    whole = cloud.nova.services
    cloud.nova.silence("h1")
    # Its instances are not told of.
    cloud.nova.servers = []

    silent = await cloud.audit(after_s=10_000)

    assert (outcomes(silent), cloud.books.freed) == ([], [])
    assert silent.nova is not None
    assert "silent" in silent.nova.problem
    assert silent.problems() == [f"Nova: {silent.nova.problem}"]
    cloud.nova.services = whole
    cloud.nova.servers = [RUNNING]
    assert outcomes(await cloud.audit(after_s=1)) == [(UNKNOWN, NEVER, "mended")]


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_an_error_of_nova_stops_all_frees(status: int) -> None:
    cloud = Cloud(held(RUNNING), held(NEVER))
    cloud.nova.servers = [RUNNING]
    await cloud.audit()
    cloud.nova.status = status

    for _ in range(2):
        result = await cloud.audit(after_s=10_000)
        assert (outcomes(result), cloud.books.freed) == ([], [])
        assert result.nova is not None
        assert str(status) in result.nova.problem


async def test_a_consumer_that_has_changed_since_the_first_look_waits_anew() -> None:
    cloud = Cloud(held(NEVER))
    await cloud.audit()
    cloud.books.entries[NEVER] = held(NEVER, generation=2)

    assert outcomes(await cloud.audit(after_s=10_000)) == [(UNKNOWN, NEVER, "not mended")]
    assert outcomes(await cloud.audit(after_s=10_000)) == [(UNKNOWN, NEVER, "mended")]


async def test_a_consumer_that_nova_knew_in_between_waits_anew() -> None:
    cloud = Cloud(held(NEVER), held(RUNNING))
    cloud.nova.servers = [RUNNING]
    await cloud.audit()
    cloud.nova.servers = [RUNNING, NEVER]
    assert outcomes(await cloud.audit(after_s=10_000)) == []
    cloud.nova.servers = [RUNNING]

    assert outcomes(await cloud.audit(after_s=10_000)) == [(UNKNOWN, NEVER, "not mended")]


async def test_a_clock_that_was_set_back_waits_anew() -> None:
    cloud = Cloud(held(NEVER))
    await cloud.audit()

    assert outcomes(await cloud.audit(after_s=-100)) == [(UNKNOWN, NEVER, "not mended")]
    assert cloud.looks.kept[NEVER].at == NOW - timedelta(seconds=100)


class ChangesMeanwhile(Cloud):
    """While Nova is asked, this consumer is claimed anew, or let go."""

    becomes: BookEntry | None = None

    async def unknown(self, consumers: Collection[ConsumerId]) -> HoldersAsked:
        found = await super().unknown(consumers)
        if self.becomes is None:
            self.books.entries.pop(NEVER, None)
        else:
            self.books.entries[NEVER] = self.becomes
        return found


@pytest.mark.parametrize("becomes", [None, held(NEVER, generation=2, attempt=2)])
async def test_what_changes_while_nova_is_asked_is_no_fault(becomes: BookEntry | None) -> None:
    cloud = ChangesMeanwhile(held(NEVER))
    cloud.becomes = becomes

    assert outcomes(await cloud.audit()) == []
    assert cloud.looks.kept == {}


async def test_other_programs_allocations_are_neither_counted_nor_freed() -> None:
    cloud = Cloud(held(NEVER, cell="", type="VOLUME", attempt=0))

    result = await cloud.audit()

    assert (outcomes(result), result.nova and result.nova.consumers) == ([], 0)


async def test_an_answer_that_cannot_be_read_stops_all_frees() -> None:
    cloud = Cloud(held(NEVER))
    await cloud.audit()
    cloud.nova.services = [{"binary": 7}]

    assert outcomes(await cloud.audit(after_s=10_000)) == []
    with pytest.raises(WrongAnswer, match="binary"):
        await cloud.unknown([NEVER])


# What is remembered between two audits


async def test_first_looks_are_remembered_in_a_file_of_their_nova(tmp_path: Path) -> None:
    file = tmp_path / "data" / "unknown-to-nova.json"
    looks = {NEVER: FirstLook(NEVER, SeenConsumer(generation=1, attempt=1), NOW)}
    kept = LooksInFile(file, "http://nova")

    kept.save({})
    assert not file.exists()
    kept.save(looks)
    assert LooksInFile(file, "http://nova").load() == looks
    assert LooksInFile(file, "http://another").load() == {}
    kept.save({})
    assert kept.load() == {}


async def test_a_damaged_file_counts_for_nothing_and_one_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "unknown-to-nova.json"
    file.write_text('{"nova": "http://nova", "looks": [{}]}')

    assert LooksInFile(file, "http://nova").load() == {}
    assert "counts for nothing" in capsys.readouterr().err
    looks = {NEVER: FirstLook(NEVER, SeenConsumer(generation=1, attempt=1), NOW)}
    (tmp_path / "occupied").touch()
    with pytest.raises(typer.Exit):
        LooksInFile(tmp_path / "occupied" / "unknown.json", "http://nova").save(looks)
    assert "cannot be written" in capsys.readouterr().err
