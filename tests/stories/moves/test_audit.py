"""`moor audit` on a running cloud: silent while it works, and after damage by hand silent again once it has mended it."""

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from uuid import UUID

import pytest

from bus.messages.books import SetQuota, WriteAnswered
from bus.workers.connections import Station
from engine.inventories import ConsumerId, ProviderId
from moor.client.books.auditing import FOUND, MENDED, NOT_MENDED, AuditResult, Finding
from moor.client.books.books_reader import BooksReader
from moor.client.books.views import Fault, InstanceView
from moor.client.bus_client import answer_of
from tests.stories.moor.moor_process import moor_says
from tests.stories.moves.books_stage import books_stage
from tests.stories.moves.damage import ADDED, DAMAGES, HARMLESS, IN_DOUBT, damage
from tests.waiting import until

STAGES = ("embedded", pytest.param("real", marks=[pytest.mark.rabbitmq, pytest.mark.postgresql]))


def kinds_by_id(result: AuditResult) -> dict[UUID | None, set[str]]:
    found: dict[UUID | None, set[str]] = defaultdict(set)
    for each in result.findings:
        found[each.fault.about].add(each.fault.kind)
    return found


@pytest.mark.parametrize("kind", STAGES)
async def test_damage_by_hand_is_found_and_mended_and_then_the_audit_is_silent(kind: str) -> None:
    async with books_stage(kind) as stage:
        # So what its instances hold is counted, too.
        await answer_of(stage.client, SetQuota(project="shop", limits={"VCPU": 1000}), WriteAnswered)
        ids = await stage.boot_in(1, [*[each.state for each in DAMAGES.values()], "active", "active"])
        await stage.until_silent()
        harmed = dict(zip(DAMAGES, ids, strict=False))
        added = iter(UUID(int=ADDED.int + number) for number in (1, 2, 3))
        wanted = {
            next(added) if each.adds else harmed[name]: each.kinds
            for name, each in DAMAGES.items()
            if each.kinds
        }

        await damage(stage.database_url, [(DAMAGES[name], id_) for name, id_ in harmed.items()])
        found = await stage.audit()
        # The harmed instance is in one cell: an audit of the other does not tell of it.
        type_of_it = harmed["another type"]
        cell = (await stage.states([type_of_it]))[type_of_it].cell
        elsewhere = await stage.audit(cell="c2" if cell == "c1" else "c1")
        mended = await (stage.audit(heals=True) if not stage.bus_url else by_command(stage.bus_url))
        after = await stage.audit()

        by_id = kinds_by_id(found)
        assert by_id.pop(None), "placement's tables contradict themselves"
        assert by_id == wanted
        assert {each.outcome for each in found.findings} == {FOUND}
        assert type_of_it in by_id
        assert type_of_it not in kinds_by_id(elsewhere)
        assert {each.outcome for each in mended.findings} == {MENDED}, mended.findings
        assert len(mended.findings) == len(found.findings)
        assert after.findings == ()
        assert await stage.placement.audit() == ()
        # After the mends each instance can be deleted, and nothing stays.
        await stage.delete(ids)
        await stage.until_silent()
        assert not [each for each in await stage.placement.books_page(None, 100) if each.held]


@pytest.mark.parametrize("kind", STAGES)
async def test_an_instance_that_its_row_cannot_explain_is_named_and_left_alone(kind: str) -> None:
    async with books_stage(kind) as stage:
        ids = await stage.boot_in(1, [each.state for each in IN_DOUBT.values()])
        await stage.until_silent()
        before = await stage.placement.books_page(None, 100)
        await damage(stage.database_url, zip(IN_DOUBT.values(), ids, strict=True))

        found, healed, after = [await stage.audit(heals=heals) for heals in (False, True, False)]

        wanted = dict(zip(ids, (each.kinds for each in IN_DOUBT.values()), strict=True))
        assert kinds_by_id(found) == kinds_by_id(healed) == kinds_by_id(after) == wanted
        assert {each.outcome for each in healed.findings} == {NOT_MENDED}
        assert all(each.why for each in (*found.findings, *healed.findings))
        # Each runs where it ran, and holds what it held.
        assert await stage.placement.books_page(None, 100) == before


@pytest.mark.parametrize("kind", STAGES)
async def test_a_cleanup_of_nothing_is_no_fault_and_ends_by_itself(kind: str) -> None:
    async with books_stage(kind) as stage:
        (instance,) = await stage.boot(1, 1)
        await stage.until_silent()
        await damage(stage.database_url, [(HARMLESS, instance)])

        assert (await stage.audit(heals=True)).findings == ()
        await stage.delete([instance])
        await stage.until_silent()
        assert not [each for each in await stage.placement.books_page(None, 100) if each.held]


class LooksAgainLater(BooksReader):
    """Its second look waits until what was in flight at the first one has arrived."""

    def __init__(
        self,
        client: Station,
        cells: Collection[str],
        computes: Collection[str],
        *,
        arrived: Callable[[], Awaitable[object]],
    ) -> None:
        super().__init__(client, dict.fromkeys(cells, client), computes)
        self._arrived = arrived

    async def views_of(
        self, ids: Sequence[ConsumerId], hosts: Collection[ProviderId]
    ) -> tuple[dict[ConsumerId, InstanceView], frozenset[ProviderId]]:
        await self._arrived()
        return await super().views_of(ids, hosts)


@pytest.mark.parametrize("kind", STAGES)
async def test_during_boots_and_deletes_an_audit_finds_nothing_and_changes_nothing(kind: str) -> None:
    async with books_stage(kind) as stage:
        # Fewer where each costs several processes' work.
        each, deleted = (50, 150) if kind == "embedded" else (10, 30)
        first = await stage.ask_many(1, 5, each)
        await stage.until(first, {"active"})
        # Boots and deletes are under way while both audits read.
        second = await stage.ask_many(11, 5, each)
        await stage.ask_delete(first[:deleted])

        async def arrived() -> None:
            await stage.until(second, {"active"})
            await stage.until(first[:deleted], {"deleted"})
            await until(
                lambda: stage.placement.book_entries(first[:deleted], None),
                "all of the deleted is free",
                lambda found: not any(each.held for each in found),
            )

        usual = await stage.audit(heals=True, settle_s=60)
        twice = await stage.audit(
            heals=True,
            reader=lambda client, cells, computes: LooksAgainLater(client, cells, computes, arrived=arrived),
        )

        assert (usual.findings, twice.findings) == ((), ())
        assert not usual.unanswered
        await arrived()
        assert {each.state for each in (await stage.states(first[deleted:])).values()} == {"active"}
        held = await stage.placement.books_page(None, 1000)
        assert {each.id for each in held} == {*first[deleted:], *second}
        # No mend has raised a generation.
        assert {(each.generation, each.attempt) for each in held} == {(1, 1)}


async def by_command(bus_url: str) -> AuditResult:
    """The command `moor audit` finds the same faults, mends them, and then finds none."""
    flags = ("audit", "--bus", bus_url, "--settle", "0")
    mended = await moor_says(4, "", *flags, "--heal", "-o", "json")
    await moor_says(0, "no faults", *flags)

    *lines, summary = [json.loads(line) for line in mended.out.splitlines()]
    assert (summary["faults"], summary["not_mended"], summary["unanswered"]) == (len(lines), 0, [])
    findings = [
        Finding(Fault(each["fault"], None, each["text"]), each["outcome"], each.get("why", ""))
        for each in lines
    ]
    return AuditResult(compared=summary["compared"], in_flight=0, findings=tuple(findings), unanswered=())
