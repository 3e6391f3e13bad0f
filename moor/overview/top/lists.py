"""What each tab of `moor top` lists, and what is shown of a row that is opened: as the commands print it."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from msgspec import Struct
from rich.text import Text

from bus.messages.build import AskInstances, InstancesFound, InstanceState
from bus.messages.moves import AskHistory, AskMoves, Change, HistoryFound, MovesFound
from bus.messages.planning import AskExplanation, ExplanationsFound
from bus.workers.dead_letters import open_dead_letters
from engine.flavors import InstanceId
from engine.hosts import HostState, host_in_cell
from moor.asking import CommandClient, answer_of, hosts_of
from moor.broker.dead_command import LETTERS, document_of, print_letter
from moor.instances.moves.history_command import HISTORY, MOVES
from moor.instances.plan_showing import print_choice
from moor.options import broker_of, out
from moor.settings import Settings
from moor.showing import COLOURS, HOSTS, INSTANCES, last_heard, print_host, print_instance, time_in_words
from moor.tables import Columns, print_table

# So many rows are read at most: nobody reads more on a screen.
INSTANCES_MAX, MOVES_MAX, LETTERS_MAX = 200, 200, 1000
ANY_STATE = ""
STATES = (ANY_STATE, *COLOURS)


class TabRows(Struct, frozen=True):
    """The rows of a tab, how they are shown, and by what key each is opened. `told` says what the list leaves out."""

    rows: Sequence[Any]
    columns: Columns[Any]
    key: Callable[[Any], str]
    told: str = ""


def filled(listed: TabRows) -> tuple[list[str], list[list[Text]]]:
    """The headings of the columns that are not empty, and their cells row by row; without rows, all headings."""
    cells = [
        [Text(it) if isinstance(it := cell(each), str) else it for cell in listed.columns.cells.values()]
        for each in listed.rows
    ]
    headings = [*listed.columns.cells]
    wanted = [at for at in range(len(headings)) if not cells or any(row[at] for row in cells)]
    return [headings[at] for at in wanted], [[row[at] for at in wanted] for row in cells]


class Lists:
    """Asks for the rows of tabs, and for everything about one row."""

    def __init__(self, asking: CommandClient, settings: Settings) -> None:
        self._asking = asking
        self._settings = settings
        self.state = ANY_STATE
        self._letters: dict[str, dict[str, Any]] = {}

    def next_state(self, there: Collection[str]) -> None:
        """Go to the next state of instances to list, among those that some instance has."""
        at = STATES.index(self.state) + 1
        following = (*STATES[at:], *STATES[:at])
        self.state = next((each for each in following if each in there or each == ANY_STATE), ANY_STATE)

    async def instances(self) -> TabRows:
        question = AskInstances(state=self.state, limit=INSTANCES_MAX)
        found = await answer_of(self._asking, question, InstancesFound)
        which = f"state {self.state}" if self.state else "every state"
        more = f"; the first {INSTANCES_MAX} by id" if found.next else ""
        return TabRows(found.instances, INSTANCES, _id, f"{which}{more}; s: next state")

    async def hosts(self) -> TabRows:
        found = await hosts_of(self._asking)
        return TabRows(found, HOSTS, lambda host: host_in_cell(host.cell, host.name), "r: read again")

    async def waiting(self) -> TabRows:
        question = AskInstances(state="waiting", limit=INSTANCES_MAX)
        found = await answer_of(self._asking, question, InstancesFound)
        more = f"the first {INSTANCES_MAX} by id" if found.next else ""
        return TabRows(found.instances, WAITING, _id, more)

    async def moves(self) -> TabRows:
        found = await answer_of(self._asking, AskMoves(limit=MOVES_MAX), MovesFound)
        more = f"the newest {MOVES_MAX}" if len(found.moves) == MOVES_MAX else ""
        return TabRows(found.moves, MOVES, lambda change: str(change.instance), more)

    async def letters(self) -> TabRows:
        connection = await broker_of(self._settings.bus_url).connect()
        try:
            async with open_dead_letters(connection, LETTERS_MAX) as opened:
                letters = [document_of(letter) for letter in opened.letters.values()]
        finally:
            await connection.close()
        self._letters = {letter["handle"]: letter for letter in letters}
        return TabRows(letters, LETTERS, lambda letter: letter["handle"], "r: read again")

    async def about_instance(self, key: str) -> Callable[[], None]:
        id_ = InstanceId(UUID(key))
        states = await self._asking.instances([id_])
        history = await answer_of(self._asking, AskHistory(instance=id_), HistoryFound)
        explained = await answer_of(self._asking, AskExplanation(instance=id_), ExplanationsFound)
        return partial(self._print_instance, states, history.changes, explained)

    def _print_instance(
        self, states: Sequence[InstanceState], changes: Sequence[Change], explained: ExplanationsFound
    ) -> None:
        for state in states:
            cell = last_heard(state.cell, self._asking.cells)
            print_instance(state, cell, self._asking.details.get(state.id))
        if changes:
            out.print()
            print_table(changes, HISTORY)
        for each in explained.explanations:
            out.print()
            print_choice(each, of_boot=False)

    async def about_host(self, key: str) -> Callable[[], None]:
        hosts = await hosts_of(self._asking, key)
        question = AskInstances(host=key, limit=INSTANCES_MAX)
        found = await answer_of(self._asking, question, InstancesFound)
        return partial(_print_hosts, hosts, found)

    async def about_letter(self, key: str) -> Callable[[], None]:
        return partial(print_letter, dict(self._letters[key]))


ABOUT: dict[str, Callable[[Lists, str], Awaitable[Callable[[], None]]]] = {
    "instances": Lists.about_instance,
    "waiting": Lists.about_instance,
    "moves": Lists.about_instance,
    "hosts": Lists.about_host,
    "letters": Lists.about_letter,
}


def _id(state: InstanceState) -> str:
    return str(state.id)


def _why(state: InstanceState) -> str:
    """The filter that removed the last host, with its example."""
    steps = state.no_valid_host.steps if state.no_valid_host else ()
    removing = [each for each in steps if each.removed]
    return f"{removing[-1].step}: {removing[-1].example}" if removing else state.reason


WAITING = Columns[InstanceState](
    {
        "instance": lambda each: str(each.id),
        "name": lambda each: each.name,
        "until": lambda each: time_in_words(each.waiting.until) if each.waiting else "",
        "priority": lambda each: str(each.waiting.priority) if each.waiting else "",
        "why": _why,
    },
    prose=("why",),
)


def _print_hosts(hosts: Sequence[HostState], found: InstancesFound) -> None:
    for host in hosts:
        print_host(host)
    if found.instances:
        out.print()
        print_table(found.instances, INSTANCES)
    if found.next:
        out.print(f"and more: only the first {INSTANCES_MAX} are shown")


def as_text(show: Callable[[], None], width: int) -> Text:
    """What a command prints, as a text of this width."""
    before = out.width
    out.width = width
    try:
        with out.capture() as captured:
            show()
    finally:
        out.width = before
    return Text.from_ansi(captured.get())
