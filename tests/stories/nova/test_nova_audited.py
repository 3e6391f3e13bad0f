"""`moor audit --heal` on a placement that a running Nova uses: it keeps all that Nova needs, and frees what Nova never knew."""

import json
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from bus.messages.books import (
    ConsumerAllocations,
    CreateProvider,
    Done,
    ProviderWritten,
    SetAllocations,
    SetInventories,
    WriteAnswered,
)
from bus.workers.connections import Station
from engine.inventories import ConsumerId, ReportedInventory, ResourceAmount
from moor.client.books.auditing import FOUND, MENDED, NOT_MENDED
from moor.client.books.books_reader import BooksReader
from moor.client.bus_client import answer_of
from tests.nova.simulated_api import SimulatedNova
from tests.served import served
from tests.stories.moor.moor_process import Result, moor
from tests.stories.moves.books_stage import BooksStage, a_site, stage_on
from tests.stories.scripted import host_id

STAGES = ("embedded", pytest.param("real", marks=[pytest.mark.rabbitmq, pytest.mark.postgresql]))
HOST = host_id("nova-compute-1")
RUNNING, SOFT, NEVER, MOVING, STALE = (ConsumerId(UUID(int=0xA0 + number)) for number in range(5))
AMOUNTS = (ResourceAmount(HOST, "VCPU", 2), ResourceAmount(HOST, "MEMORY_MB", 512))


def by_http(consumer: ConsumerId, kind: str) -> ConsumerAllocations:
    return ConsumerAllocations(
        consumer=consumer, amounts=AMOUNTS, project="p1", user="u1", generation=None, type=kind
    )


async def write(stage: BooksStage, order: CreateProvider | SetInventories | SetAllocations) -> None:
    verdict = (await answer_of(stage.client, order, WriteAnswered)).verdict
    assert isinstance(verdict, Done | ProviderWritten), verdict


async def with_claims_of_nova(stage: BooksStage) -> None:
    """A compute of Nova, whose provider has no cell, and what Nova and our scheduler in its place wrote there."""
    await write(stage, CreateProvider(id=HOST, name="nova-compute-1"))
    await write(
        stage,
        SetInventories(
            provider=HOST,
            generation=0,
            inventories={"VCPU": ReportedInventory(total=64), "MEMORY_MB": ReportedInventory(total=65536)},
        ),
    )
    instances = [by_http(each, "INSTANCE") for each in (RUNNING, SOFT, NEVER)]
    migrations = [by_http(each, "MIGRATION") for each in (MOVING, STALE)]
    await write(stage, SetAllocations(consumers=(*instances, *migrations)))


async def held(stage: BooksStage) -> set[ConsumerId]:
    return {each.id for each in await stage.placement.books_page(None, 1000) if each.held}


def of_old_claims(client: Station, cells: Collection[str], computes: Collection[str]) -> BooksReader:
    return BooksReader(client, dict.fromkeys(cells, client), computes, new_s=0)


def a_nova() -> SimulatedNova:
    nova = SimulatedNova()
    nova.add_host(1, "nova-compute-1")
    nova.servers = [RUNNING]
    nova.softly_deleted = [SOFT]
    nova.migrations = [MOVING]
    return nova


@pytest.mark.parametrize("kind", STAGES)
async def test_without_a_nova_to_ask_all_that_it_holds_stays(kind: str) -> None:
    async with a_site(kind) as site, stage_on(site) as stage:
        await with_claims_of_nova(stage)

        # As if the claims were old: those of the last minutes are not judged.
        found, healed = [await stage.audit(heals=heals, reader=of_old_claims) for heals in (False, True)]

        assert (found.findings, healed.findings) == ((), ())
        assert healed.nova is not None
        assert (healed.nova.consumers, healed.nova.amounts) == (5, {"MEMORY_MB": 2560, "VCPU": 10})
        assert await held(stage) == {RUNNING, SOFT, NEVER, MOVING, STALE}


@pytest.mark.rabbitmq
@pytest.mark.postgresql
async def test_the_command_frees_what_nova_never_knew_in_two_looks_and_nothing_else(tmp_path: Path) -> None:
    api = a_nova()
    async with (
        a_site("real") as site,
        stage_on(site) as stage,
        served(api.app) as server,
    ):
        await with_claims_of_nova(stage)
        all_of_them = await held(stage)
        file = tmp_path / "unknown-to-nova.json"

        async def audit(*flags: str) -> tuple[Result, list[dict[str, object]]]:
            result = await moor(
                *("audit", "--bus", site.bus_url, "--settle", "0", "-o", "json", *flags),
                MOOR_DATA=str(tmp_path),
                MOOR_NOVA_URL=server.url,
                MOOR_NOVA_FREED_AFTER_S="3600",
            )
            return result, [json.loads(line) for line in result.out.splitlines()]

        async def is_left_alone(outcome: str, code: int, *flags: str) -> None:
            result, (*lines, summary) = await audit(*flags)
            assert result.code == code, result.err
            wanted = [("unknown to nova", str(each), outcome) for each in sorted((NEVER, STALE))]
            assert [(each["fault"], each["about"], each["outcome"]) for each in lines] == wanted
            assert isinstance(summary["nova"], dict)
            assert (summary["nova"]["consumers"], summary["nova"]["unknown"]) == (5, 2)
            assert await held(stage) == all_of_them

        await is_left_alone(FOUND, 4)
        # It is too early.
        await is_left_alone(NOT_MENDED, 5, "--heal")
        # As if these looks were of two hours ago.
        kept = json.loads(file.read_text())
        for each in kept["looks"]:
            each["at"] = (datetime.fromisoformat(each["at"]) - timedelta(hours=2)).isoformat()
        # But another Nova was asked.
        file.write_text(json.dumps(kept | {"nova": "http://another"}))
        await is_left_alone(NOT_MENDED, 5, "--heal")
        file.write_text(json.dumps(kept))

        # A silent cell, and an error, stop all frees, however long it was.
        whole, api.services = api.services, [{"binary": "nova-compute", "host": "h", "status": "UNKNOWN"}]
        silent, (summary,) = await audit("--heal")
        # So does one with no host, of which only its servers tell.
        api.services, api.silent_servers = whole, [UUID(int=0xB0)]
        partial, (of_partial,) = await audit("--heal")
        api.silent_servers, api.status = [], 500
        broken, (of_broken,) = await audit("--heal")
        api.status = 200
        assert (silent.code, partial.code, broken.code) == (3, 3, 3)
        assert "silent" in str(summary["nova"])
        assert "silent" in str(of_partial["nova"])
        assert "500" in str(of_broken["nova"])
        assert await held(stage) == all_of_them

        result, (*lines, summary) = await audit("--heal")

        assert result.code == 4, result.err
        assert [(each["about"], each["outcome"]) for each in lines] == [
            (str(each), MENDED) for each in sorted((NEVER, STALE))
        ]
        assert await held(stage) == {RUNNING, SOFT, MOVING}
        # And then all is well.
        again, (last,) = await audit("--heal")
        assert (again.code, last["faults"]) == (0, 0)
        assert not json.loads(file.read_text())["looks"]
