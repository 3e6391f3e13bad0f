"""What cells themselves have, asked now, compared with what they have told the API level."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing

from msgspec import Struct

from bus.errors import Unavailable
from bus.messages.build import CellHeard, InstanceDetails, InstanceId, InstanceState
from bus.messages.cells import AskCells, AskLive, CellsFound, LiveFound
from bus.topology import CELL0
from moor.asking import FOUND_AT_ONCE_MAX, Client, answer_of, batches_of, pages_of

# The cell's own states that stand behind each state of the API level.
_SAME = {
    "placed": ("building", "swapping"),
    "moving": ("moving", "swapping", "building"),
    "error": ("error", "broken"),
}
MISSING = "missing"
_ENDED_ABOVE = ("accepted", "waiting", "deleted")


class CellAnswer(Struct, frozen=True):
    """The states of instances that one cell has told. If it did not tell all, `silent` says why."""

    cell: str
    states: Mapping[InstanceId, InstanceState]
    silent: str = ""


class Compared(Struct, frozen=True):
    """An instance as the API level has it (`told`), and as its cell has it (`live`).

    `differs` names the fields that differ: `state`, `host`, `attempt`; or `missing`, if the cell has no such instance.
    `live` and `differs` are empty if the cell was not asked or has not answered.
    """

    told: InstanceState
    live: InstanceState | None = None
    differs: tuple[str, ...] = ()


class Listed(Struct, frozen=True):
    """The instances that a list shows, and the ids of all instances that were read for it.

    If there are more than the list may show, `until` is the last one that it shows.
    """

    found: tuple[InstanceState, ...]
    seen: frozenset[InstanceId]
    until: InstanceId | None = None


class LiveView(Struct, frozen=True):
    """The listed instances, each compared with what its cell has, and the answers of the cells.

    `only_in_cells` are instances that are not deleted and that the API level does not have.
    """

    instances: tuple[Compared, ...]
    only_in_cells: tuple[InstanceState, ...]
    answers: tuple[CellAnswer, ...]
    heard: Mapping[str, CellHeard]
    details: Mapping[InstanceId, InstanceDetails] = {}

    @property
    def silent(self) -> tuple[CellAnswer, ...]:
        return tuple(each for each in self.answers if each.silent)


def matches(state: InstanceState, wanted: Mapping[str, str]) -> bool:
    return all(getattr(state, field) == value for field, value in wanted.items() if value)


async def live_view(asking: Client, listed: Listed, wanted: Mapping[str, str], within_s: float) -> LiveView:
    """Ask cells for the instances that they have, and compare their answers with the listed instances.

    If a cell is wanted, only that cell is asked. If a project is wanted, the cells of the listed instances are asked.
    Otherwise all cells are asked.
    """
    if wanted["cell"]:
        cells = {wanted["cell"]}
    else:
        cells = _cells_of(listed.found)
        if not wanted["project"]:
            cells |= {*await _names_of_cells(asking)}
    answers = await _ask_all(asking, cells, within_s, project=wanted["project"], until=listed.until)
    unknown = [
        state
        for answer in answers
        for id_, state in answer.states.items()
        if id_ not in listed.seen
        and (listed.until is None or id_ <= listed.until)
        and state.state != "deleted"
        and matches(state, wanted)
    ]
    # Some may have been accepted since the list was read.
    above = {each.id for each in await asking.instances([each.id for each in unknown], wanted["project"])}
    only = sorted((each for each in unknown if each.id not in above), key=lambda each: each.id)
    compared = _all_compared(listed.found, answers)
    return LiveView(compared, tuple(only), answers, asking.cells, asking.details)


async def live_view_of(
    asking: Client, told: Sequence[InstanceState], project: str, within_s: float
) -> LiveView:
    """Ask the cells of these instances for their states, and compare the answers with what the API level told."""
    answers: dict[str, CellAnswer] = {}
    for part in batches_of(told, FOUND_AT_ONCE_MAX):
        ids = [each.id for each in part]
        for answer in await _ask_all(asking, _cells_of(part), within_s, project=project, ids=ids):
            before = answers.get(answer.cell, answer)
            states = {**before.states, **answer.states}
            answers[answer.cell] = CellAnswer(answer.cell, states, before.silent or answer.silent)
    all_answers = tuple(answers[cell] for cell in sorted(answers))
    return LiveView(_all_compared(told, all_answers), (), all_answers, asking.cells, asking.details)


def _cells_of(states: Iterable[InstanceState]) -> set[str]:
    return {each.cell for each in states} - {"", CELL0}


async def _names_of_cells(asking: Client) -> tuple[str, ...]:
    answer = await answer_of(asking, AskCells(), CellsFound)
    asking.cells |= {
        each.cell: CellHeard(cell=each.cell, life=each.life, heard_at=each.heard_at, reason=each.reason)
        for each in answer.cells
    }
    return tuple(each.cell for each in answer.cells)


async def _ask_all(
    asking: Client,
    cells: Iterable[str],
    within_s: float,
    *,
    project: str,
    ids: Sequence[InstanceId] = (),
    until: InstanceId | None = None,
) -> tuple[CellAnswer, ...]:
    """Ask all these cells at once for the instances `ids`. Without `ids`, for all instances up to the id `until`."""
    questions = [AskLive(in_cell=cell, instances=tuple(ids), project=project) for cell in sorted(cells)]
    return tuple(await asyncio.gather(*[_ask(asking, each, until, within_s) for each in questions]))


async def _ask(asking: Client, question: AskLive, until: InstanceId | None, within_s: float) -> CellAnswer:
    states: dict[InstanceId, InstanceState] = {}
    silent = ""
    try:
        async with asyncio.timeout(within_s), aclosing(pages_of(asking, question, LiveFound)) as pages:
            async for page in pages:
                states |= {each.id: each for each in page.instances}
                if (silent := page.silent) or (until is not None and page.next and page.next >= until):
                    break
    except TimeoutError:
        silent = f"no answer within {within_s:g} s"
    except Unavailable as problem:
        silent = str(problem)
    return CellAnswer(question.in_cell, states, silent)


def _all_compared(told: Sequence[InstanceState], answers: Sequence[CellAnswer]) -> tuple[Compared, ...]:
    by_cell = {each.cell: each for each in answers}
    return tuple(_compared(each, by_cell.get(each.cell)) for each in told)


def _compared(told: InstanceState, answer: CellAnswer | None) -> Compared:
    live = None if answer is None else answer.states.get(told.id)
    if live is not None:
        return Compared(told, live, _differences(told, live))
    is_missing = answer is not None and not answer.silent and told.state not in _ENDED_ABOVE
    return Compared(told, None, (MISSING,) if is_missing else ())


def _differences(told: InstanceState, live: InstanceState) -> tuple[str, ...]:
    differs = []
    if live.state not in _SAME.get(told.state, (told.state,)):
        differs.append("state")
    if told.host and live.host and told.host != live.host:
        differs.append("host")
    if told.attempt != live.attempt and live.state != "deleted":
        differs.append("attempt")
    return tuple(differs)
