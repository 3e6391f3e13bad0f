"""The screen of `moor top`."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static, TabbedContent, TabPane

from bus.messages.build import AskInstances, InstancesFound, InstanceState
from bus.messages.moves import AskHistory, AskMoves, Change, HistoryFound, MovesFound
from bus.messages.planning import AskExplanation, ExplanationsFound
from bus.workers.dead_letters import open_dead_letters
from engine.flavors import InstanceId
from engine.hosts import HostState, host_in_cell
from kit.errors import ConnectionLost, Failure, Refusal
from moor.asking import CommandClient, answer_of, hosts_of
from moor.broker.messages_command import LETTERS, document_of, print_letter
from moor.client.errors import ClientError
from moor.instances.boot_command import print_choice
from moor.instances.move_commands import HISTORY, MOVES
from moor.options import broker_of, out
from moor.overview.gathering import RATES, CloudView, CloudViewer, Rates
from moor.overview.status_command import overview_in_words
from moor.settings import Settings
from moor.showing import COLOURS, HOSTS, INSTANCES, last_heard, print_host, print_instance, time_in_words
from moor.tables import Columns, Rows, print_table

# What each tab of `moor top` lists, and what is shown of a row that is opened: as the commands print it.

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


TABS = {
    "overview": "Overview",
    "instances": "Instances",
    "hosts": "Hosts",
    "waiting": "Waiting",
    "moves": "Moves",
    "letters": "Dead letters",
}
# These are read again only when they are opened, or by r: they may be long, or to read them takes them off their queue.
READ_ONCE = ("hosts", "letters")
NOTHING = {
    "instances": "no instances",
    "hosts": "no hosts",
    "waiting": "nothing waits for room",
    "moves": "no move is under way",
    "letters": "no dead letters",
}


class Details(ModalScreen[None]):
    """Everything about one row; Escape goes back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "back"),
        Binding("q", "dismiss", "back", show=False),
    ]
    CSS = "Details { align: center middle; } #details { width: 95%; height: 90%; border: round $primary; padding: 0 1; }"

    def __init__(self, show: Callable[[], None]) -> None:
        super().__init__()
        self._show = show

    def compose(self) -> ComposeResult:
        width = self.app.size.width * 95 // 100 - 6
        with VerticalScroll(id="details"):
            yield Static(as_text(self._show, max(width, 40)))
        yield Footer()


class Top(App[None]):
    """The overview, which is read again and again, and lists beside it."""

    TITLE = "Moorage"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #tabs { height: 1fr; }
    #told { height: 1; padding: 0 1; color: $text-muted; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"tab('{tab}')", name) for number, (tab, name) in enumerate(TABS.items(), 1)),
        Binding("s", "state", "state of instances", show=False),
        Binding("r", "again", "read again"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, asking: CommandClient, settings: Settings, every_s: float) -> None:
        super().__init__()
        self._viewer = CloudViewer(asking, settings)
        self._every_s = every_s
        self._lists = Lists(asking, settings)
        self._rates = Rates()
        self.view: CloudView | None = None

    def compose(self) -> ComposeResult:
        with TabbedContent(id="tabs"):
            for tab, name in TABS.items():
                with TabPane(name, id=tab):
                    if tab == "overview":
                        with VerticalScroll():
                            yield Static("asking a scheduler ...", id="seen")
                    else:
                        yield DataTable[Any](id=f"{tab}-rows", cursor_type="row", zebra_stripes=True)
        yield Static("", id="told")
        yield Footer()

    async def on_unmount(self) -> None:
        await self._viewer.close()

    def on_mount(self) -> None:
        self._watch()

    @work(exclusive=True, group="watch")
    async def _watch(self) -> None:
        while True:
            await self._trying(self._look)
            if self.tab not in ("overview", *READ_ONCE):
                await self._trying(self._fill)
            await asyncio.sleep(self._every_s)

    @property
    def tab(self) -> str:
        return self.query_one("#tabs", TabbedContent).active

    def action_tab(self, tab: str) -> None:
        self.query_one("#tabs", TabbedContent).active = tab

    def action_state(self) -> None:
        counts = self.view.overview.instances if self.view and self.view.overview else ()
        self._lists.next_state({each.state for each in counts})
        self.action_tab("instances")
        self.action_again()

    def action_again(self) -> None:
        self._read()

    def on_tabbed_content_tab_activated(self) -> None:
        if self.tab != "overview":
            self.query_one(f"#{self.tab}-rows", DataTable).focus()
            self._read()
        else:
            self._tell("")

    @work(exclusive=True, group="read")
    async def _read(self) -> None:
        await self._trying(self._look if self.tab == "overview" else self._fill)

    async def _look(self) -> None:
        self.view = await self._viewer.look()
        parts: list[RenderableType] = [overview_in_words(self.view)]
        if self.view.overview is not None:
            self._rates.take(self.view.overview)
            conflicts = f"{self._rates.conflicts_per_s():,.1f} conflicts of claims a second"
            parts += [Text(), Rows(self._rates.by_queue(), RATES), Text(conflicts, "dim")]
        self.query_one("#seen", Static).update(Group(*parts))

    async def _fill(self) -> None:
        tab = self.tab
        listed: TabRows = await getattr(self._lists, tab)()
        table = self.query_one(f"#{tab}-rows", DataTable)
        row, scrolled = table.cursor_row, table.scroll_y
        table.clear(columns=True)
        headings, rows = filled(listed)
        table.add_columns(*headings)
        for each, cells in zip(listed.rows, rows, strict=True):
            table.add_row(*cells, key=listed.key(each))
        table.move_cursor(row=min(row, max(len(listed.rows) - 1, 0)))
        table.scroll_y = scrolled
        self._tell("; ".join(filter(None, ("" if listed.rows else NOTHING[tab], listed.told))))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.row_key.value is not None:
            self._open(self.tab, event.row_key.value)

    @work(exclusive=True, group="open")
    async def _open(self, tab: str, key: str) -> None:
        async def show() -> None:
            await self.push_screen(Details(await ABOUT[tab](self._lists, key)))

        await self._trying(show)

    async def _trying(self, do: Callable[[], Any]) -> None:
        """A broker or a scheduler that is away is told, and tried again."""
        try:
            await do()
        except (Failure, ConnectionLost, Refusal, ClientError) as problem:
            self._tell(f"✗ {problem}")

    def _tell(self, text: str) -> None:
        self.query_one("#told", Static).update(Text(text))
