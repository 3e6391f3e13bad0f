"""A text on the command line names an instance by its id, else by its name, else by the beginning of its id."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import typer

from bus.message import Message
from bus.messages.build import AskInstances, BuildInstance
from bus.workers.handling import Answer, ReadOnly
from engine.flavors import InstanceId, RequestId
from engine.picture.picture import Picture
from moor.asking import CommandClient
from moor.naming import instance_ids, instance_or_request_id, instances_or_requests, prefix_in
from scheduler_worker.core.instances.lifecycle import deleted
from scheduler_worker.core.instances.rows import accepted
from scheduler_worker.questions import instance_questions
from scheduler_worker.registry import CellRegistry
from scheduler_worker.store import NewRequest
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.scheduler.lone_scheduler import an_ask

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WEB = UUID("3f2a1111-0000-5000-8000-000000000001")
TWIN = UUID("3f2a2222-0000-5000-8000-000000000002")
SHOP = UUID("77770000-0000-5000-8000-000000000003")
# A name that is also the beginning of another instance's id.
CAFE, OTHER = UUID("aaaa0000-0000-5000-8000-000000000004"), UUID("cafe0000-0000-5000-8000-000000000005")
FIRST, SECOND = UUID("bbbb1111-0000-5000-8000-000000000006"), UUID("bbbb1111-0000-5000-8000-000000000007")
GONE, GONE_TOO = UUID("dddd1111-0000-5000-8000-000000000008"), UUID("dddd1111-0000-5000-8000-000000000009")

REQUESTS = (
    ("3f2a1111-0000-7000-8000-000000000001", "web", "", [WEB]),
    ("3f2a2222-0000-7000-8000-000000000002", "db", "", [TWIN]),
    ("77770000-0000-7000-8000-000000000003", "shop", "shop", [SHOP]),
    ("aaaa0000-0000-7000-8000-000000000004", "cafe", "", [CAFE]),
    ("cafe0000-0000-7000-8000-000000000005", "shop", "", [OTHER]),
    ("bbbb1111-0000-7000-8000-000000000006", "many", "", [FIRST, SECOND]),
    ("dddd1111-0000-7000-8000-000000000008", "gone", "", [GONE]),
    ("dddd1111-0000-7000-8000-000000000009", "web", "", [GONE_TOO]),
)


class StoreClient(CommandClient):
    """A client whose questions a scheduler's handler answers from the memory store. It counts them."""

    def __init__(self, store: MemorySchedulerStore) -> None:
        self.cells, self.details = {}, {}
        self.asked = 0
        registry = CellRegistry(Picture(), timedelta(seconds=20), lambda: NOON)
        handler = instance_questions(store, registry)[AskInstances]
        assert isinstance(handler, ReadOnly)
        self._handle: Callable[[Any], Awaitable[Sequence[Any]]] = handler.handle

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        self.asked += len(questions)
        answers = await self._handle([an_ask(each, reply_to="answers.me.1") for each in questions])
        return [each.message for each in answers if isinstance(each, Answer)]


async def a_client() -> StoreClient:
    store = MemorySchedulerStore()
    async with store.transaction() as transaction:
        for request, name, project, ids in REQUESTS:
            build = BuildInstance(request_id=RequestId(UUID(request)), name=name, project=project)
            rows = accepted(build, [*map(InstanceId, ids)], NOON, NOON)
            await transaction.accept([NewRequest(RequestId(UUID(request)), b"", rows)])
    async with store.transaction() as transaction:
        rows_of = await transaction.lock([InstanceId(GONE), InstanceId(GONE_TOO)])
        await transaction.save([over for row in rows_of.values() if (over := deleted(row, NOON)) is not None])
    return StoreClient(store)


def run(work: Callable[[StoreClient], Coroutine[Any, Any, Any]]) -> Any:
    async def with_client() -> Any:
        return await work(await a_client())

    return asyncio.run(with_client())


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("3f2a", "3f2a"),
        ("3F2A", "3f2a"),
        ("3f2a1111-00", "3f2a111100"),
        ("3f2a111100", "3f2a111100"),
        ("3f2a1111-", "3f2a1111"),
        ("3f2", ""),
        ("3f2a-1111", ""),
        ("web", ""),
        ("", ""),
        ("----", ""),
        ("3f2a1111-0000-5000-8000-0000000000011", ""),
    ],
)
def test_the_beginning_of_an_id_has_four_digits_or_more_and_dashes_at_their_places(
    text: str, digits: str
) -> None:
    assert prefix_in(text) == digits


@pytest.mark.parametrize(
    ("text", "project", "meant"),
    [
        (str(WEB), "", WEB),
        (WEB.hex.upper(), "", WEB),
        # A deleted one has the name, too.
        ("web", "", WEB),
        ("3f2a1", "", WEB),
        ("3F2A1111-0000", "", WEB),
        ("cafe", "", CAFE),
        ("cafe0", "", OTHER),
        # Two have the name, one of them in this project.
        ("shop", "shop", SHOP),
        ("gone", "", GONE),
        ("many-2", "", SECOND),
    ],
)
def test_an_instance_is_found_by_id_by_name_and_by_the_beginning_of_its_id(
    text: str, project: str, meant: UUID
) -> None:
    assert run(lambda asking: instance_ids(asking, [text], project)) == [meant]


def test_a_whole_id_is_not_looked_up() -> None:
    async def work(asking: StoreClient) -> int:
        assert await instance_ids(asking, [str(WEB), str(UUID(int=5))]) == [WEB, UUID(int=5)]
        return asking.asked

    assert run(work) == 0


def test_several_texts_are_looked_up_together_and_twice_the_same_is_one() -> None:
    found = run(lambda asking: instance_ids(asking, ["db", str(WEB), "web", "3f2a2"]))
    assert found == [TWIN, WEB]


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("shop", (f"{SHOP}  shop  accepted", f"{OTHER}  shop  accepted")),
        ("3f2a", (f"{WEB}  web  accepted", f"{TWIN}  db  accepted")),
        ("bbbb", (f"{FIRST}  many-1  accepted", f"{SECOND}  many-2  accepted")),
    ],
)
def test_if_several_may_be_meant_they_are_listed_and_nothing_is_done(
    capsys: pytest.CaptureFixture[str], text: str, candidates: tuple[str, ...]
) -> None:
    with pytest.raises(typer.Exit):
        run(lambda asking: instance_ids(asking, ["db", text]))
    said = capsys.readouterr().err
    assert f"instance {text!r} may be any of these, so nothing was done" in said
    assert all(each in said for each in candidates)


@pytest.mark.parametrize(
    "text", ["nobody", "WEB", "we", "3f2", "dddd", "dddd1111-0000-5000-8000-00000000000"]
)
def test_what_nothing_is_called_is_said_and_deleted_ones_have_no_short_ids(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    with pytest.raises(typer.Exit):
        run(lambda asking: instance_ids(asking, [text, "web"]))
    assert f"there is no instance {text!r}, so nothing was done" in capsys.readouterr().err


def test_another_projects_instances_are_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    async def work(asking: StoreClient) -> None:
        for text in ("web", "3f2a1"):
            with pytest.raises(typer.Exit):
                await instance_ids(asking, [text], "shop")

    run(work)
    assert str(WEB) not in capsys.readouterr().err


def test_an_empty_text_names_nothing() -> None:
    with pytest.raises(typer.BadParameter, match="is empty"):
        run(lambda asking: instance_ids(asking, [""]))
    with pytest.raises(typer.BadParameter, match="is empty"):
        run(lambda asking: instances_or_requests(asking, [""]))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("web", {WEB}),
        # Its request begins so, too, and has no other instance.
        ("3f2a1", {WEB}),
        ("bbbb1111-0000-7", {FIRST, SECOND}),
        ("bbbb1111-0000-7000-8000-000000000006", {FIRST, SECOND}),
        ("dddd1111-0000-7000-8000-000000000008", {GONE}),
        (str(GONE), {GONE}),
        ("gone", {GONE}),
    ],
)
def test_a_request_is_found_by_the_beginning_of_its_id(text: str, meant: set[UUID]) -> None:
    assert run(lambda asking: instances_or_requests(asking, [text])).keys() == meant


def test_an_instance_or_a_request_is_not_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    for find in (
        lambda asking: instances_or_requests(asking, ["bbbb1111"]),
        lambda asking: instance_or_request_id(asking, "bbbb1111", ""),
    ):
        with pytest.raises(typer.Exit):
            run(find)
        said = capsys.readouterr().err
        assert "bbbb1111-0000-7000-8000-000000000006  request of 2 instances" in said
        assert f"{FIRST}  many-1  accepted" in said


def test_nothing_is_done_if_one_of_several_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        run(lambda asking: instances_or_requests(asking, ["web", str(UUID(int=5)), "nobody"]))
    said = capsys.readouterr().err
    assert "no instance and no request" in said
    assert "'nobody'" in said
    assert str(UUID(int=5)) in said


def test_a_lookup_costs_a_few_questions_whatever_the_number_of_instances() -> None:
    async def work(asking: StoreClient) -> list[int]:
        costs = []
        for text in ("web", "3f2a1"):
            asking.asked = 0
            await instance_ids(asking, [text])
            costs.append(asking.asked)
        return costs

    assert run(work) == [1, 2]
