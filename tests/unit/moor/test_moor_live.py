"""What `--live` makes of the rows of the API level and of what cells have told."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

import pytest
import typer
from msgspec import structs

from bus.message import Message
from bus.messages.build import CellHeard, InstanceDetails, InstanceId, InstanceState, RequestId
from bus.messages.cells import AskCells, AskLive, CellsFound, CellState, LiveFound
from moor.instances.live import Listed, LiveView, live_view, live_view_of
from moor.instances.live_showing import print_live

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOTHING = {"cell": "", "host": "", "project": "", "name": "", "state": ""}


def a_state(number: int, state: str = "active", host: str = "h1", **fields: object) -> InstanceState:
    known = InstanceState(
        id=InstanceId(UUID(int=number)),
        request_id=RequestId(UUID(int=100)),
        sequence=3,
        state=state,
        cell="c1",
        host=host,
        attempt=1,
    )
    return structs.replace(known, **fields)


class Asking:
    """A client whose cells answer from this list, in pages of two; a cell that is not in it is silent."""

    def __init__(
        self, cells: Mapping[str, Sequence[InstanceState]], above: Sequence[InstanceState] = ()
    ) -> None:
        self._in_cells = cells
        self._above = above
        self.asked: list[AskLive] = []
        self.cells = {"c1": CellHeard(cell="c1", life="down", heard_at=NOON)}
        self.details: dict[InstanceId, InstanceDetails] = {}

    async def ask(self, question: Message) -> Message:
        if isinstance(question, AskCells):
            return CellsFound(cells=tuple(CellState(cell=cell, life="up") for cell in ("c1", "c2")))
        assert isinstance(question, AskLive)
        self.asked.append(question)
        if question.in_cell not in self._in_cells:
            return LiveFound(cell=question.in_cell, silent="no conductor has told it within 5 s")
        rows = [
            row
            for row in self._in_cells[question.in_cell]
            if (question.after is None or row.id > question.after)
            and (not question.instances or row.id in question.instances)
        ]
        page = tuple(rows[:2])
        return LiveFound(
            cell=question.in_cell, instances=page, next=page[-1].id if len(rows) > len(page) else None
        )

    async def instances(self, ids: Sequence[InstanceId], _project: str = "") -> list[InstanceState]:
        return [each for each in self._above if each.id in ids]


async def view(asking: Asking, *told: InstanceState, **listed: object) -> LiveView:
    found = structs.replace(Listed(told, frozenset(each.id for each in told)), **listed)
    return await live_view(asking, found, NOTHING, 10)  # type: ignore[arg-type]


def differences(found: LiveView) -> list[tuple[int, tuple[str, ...]]]:
    return [(each.told.id.int, each.differs) for each in found.instances]


@pytest.mark.asyncio
async def test_each_difference_is_named() -> None:
    in_c1 = [
        a_state(1),
        a_state(2, state="swapping"),
        a_state(3, host="h2", attempt=2, state="building"),
        a_state(4, state="deleted", host=""),
        a_state(5, state="broken"),
    ]
    told = [
        a_state(1),
        a_state(2, state="placed"),
        a_state(3, state="placed"),
        a_state(4),
        a_state(5, state="error"),
        a_state(6),
        a_state(7, state="deleted", host=""),
    ]

    found = await view(Asking({"c1": in_c1, "c2": []}), *told)

    assert differences(found) == [
        (1, ()),
        (2, ()),
        (3, ("host", "attempt")),
        (4, ("state",)),
        (5, ()),
        (6, ("missing",)),
        (7, ()),
    ]
    assert found.silent == ()


@pytest.mark.asyncio
async def test_what_only_a_cell_has_is_listed_unless_it_is_new_or_deleted_or_behind_the_list() -> None:
    in_c1 = [a_state(1), a_state(2), a_state(3), a_state(4, state="deleted"), a_state(9)]
    asking = Asking({"c1": in_c1, "c2": []}, above=[a_state(3)])

    found = await view(asking, a_state(1), until=a_state(5).id)

    assert [each.id.int for each in found.only_in_cells] == [2]
    # Pages behind the last instance that is listed are not asked for.
    assert len([each for each in asking.asked if each.in_cell == "c1"]) == 3


@pytest.mark.asyncio
async def test_a_cell_that_does_not_answer_is_named_with_when_it_was_heard_and_the_exit_code_is_3(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = await view(Asking({"c2": []}), a_state(1))

    assert differences(found) == [(1, ())]
    with pytest.raises(typer.Exit) as ended:
        print_live(found, as_json=True)
    assert ended.value.exit_code == 3
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert [(each["cell"], each["answered"]) for each in document["cells"]] == [("c1", False), ("c2", True)]
    assert (document["instances"][0]["live"], document["instances"][0]["differs"]) == (None, [])
    assert "cell c1 has not answered: no conductor has told it within 5 s" in printed.err
    with pytest.raises(typer.Exit):
        print_live(found, as_json=False)
    assert "not known" in capsys.readouterr().out


@pytest.mark.asyncio
async def test_named_instances_are_asked_of_their_own_cells_alone() -> None:
    asking = Asking({"c1": [a_state(1), a_state(2), a_state(3)]})
    told = [a_state(1), a_state(3, state="placed", host=""), a_state(8, state="error", cell="cell0")]

    found = await live_view_of(asking, told, "", 10)  # type: ignore[arg-type]

    assert differences(found) == [(1, ()), (3, ("state",)), (8, ())]
    assert {each.in_cell for each in asking.asked} == {"c1"}
