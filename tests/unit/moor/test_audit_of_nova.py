"""The audit never frees what a running Nova holds, and frees what Nova never knew once the time between two looks is over."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.audit import (
    AskBooks,
    BookEntry,
    BooksFound,
    MendConsumer,
    SeenConsumer,
)
from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ResourceAmount
from moor.client.books.auditing import AuditOptions, AuditResult, audited
from moor.client.books.books_reader import BooksReader
from moor.client.books.rules import UNKNOWN, FirstLook, NovaToAsk
from moor.client.books.views import InstanceView
from nova_bridge.in_moor import LooksInFile
from tests.nova.simulated_api import SimulatedNova
from tests.properties.test_audit_properties import HOSTS, NOW
from tests.unit.moor.test_audit_run import Everyone

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


class Books(Everyone):
    """Placement's consumers, and nothing anywhere else. An order to free one is obeyed."""

    def __init__(self, *entries: BookEntry) -> None:
        super().__init__(InstanceView(id=InstanceId(RUNNING)))
        self.entries = {each.id: each for each in entries}
        self.freed: list[ConsumerId] = []

    async def ask(self, question: Message) -> Message:
        match question:
            case AskBooks():
                wanted = question.consumers or sorted(self.entries)
                return BooksFound(consumers=tuple(self.entries[id_] for id_ in wanted if id_ in self.entries))
            case MendConsumer(claim=None):
                entry = self.entries.pop(question.consumer)
                assert question.seen == SeenConsumer(generation=entry.generation, attempt=entry.attempt)
                self.freed.append(question.consumer)
        return await super().ask(question)


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

    async def unknown(self, consumers: Collection[ConsumerId]) -> frozenset[ConsumerId]:
        api = self.nova.api()
        try:
            return await api.unknown(consumers)
        finally:
            await api.close()

    async def audit(self, *, heals: bool = True, is_asked: bool = True, after_s: float = 0) -> AuditResult:
        self.now += timedelta(seconds=after_s)
        reader = BooksReader(self.books, dict.fromkeys(("c1", "c2"), self.books), ("c1", "c2"))
        nova = NovaToAsk(self.unknown, self.looks.load, self.looks.save, WAIT) if is_asked else None
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
