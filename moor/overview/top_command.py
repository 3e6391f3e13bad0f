"""`moor top`: the whole cloud on one screen, live."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar
from uuid import UUID

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane

from kit.errors import ConnectionLost, Failure, Refusal
from moor.client import (
    Change,
    Client,
    ClientError,
    DeadLetter,
    ExplanationsFound,
    InstancesFound,
    InstanceState,
    host_in_cell,
)
from moor.flags import option
from moor.instances.boot_command import print_choice
from moor.options import BusUrl, Cells, client, command_settings, out, run_with
from moor.overview.gathering import RATES, CloudView, CloudViewer, Rates
from moor.overview.status_command import overview_in_words
from moor.resource_commands import ALL, first_of, print_thing
from moor.resources import DEAD_LETTER, HISTORY, HOST, MIGRATION, HostShown, hosts_in
from moor.settings import Settings
from moor.showing import COLOURS, INSTANCES, WAITING, print_instances, rows_in
from moor.tables import Columns, Rows, print_table, text_of

# What each tab of `moor top` lists, and what is shown of a row that is opened: as the commands print it.

# So many rows are read at most: nobody reads more on a screen.
INSTANCES_MAX, MOVES_MAX, LETTERS_MAX = 200, 200, 1000
ANY_STATE = ""
STATES = (ANY_STATE, *COLOURS)


class TabRows(Struct, frozen=True):
    """The rows of a tab, and how they are shown: each is opened by its name. `told` says what the list leaves out."""

    rows: Sequence[Any]
    columns: Columns[Any]
    told: str = ""


class Lists:
    """Asks for the rows of tabs, and for everything about one row."""

    def __init__(self, moor: Client) -> None:
        self._moor = moor
        # Only instances in this state, and those whose names contain this text; only such hosts, too.
        self.state = ANY_STATE
        self.part = ""
        self._letters: dict[str, DeadLetter] = {}

    def next_state(self, there: Collection[str]) -> None:
        """Go to the next state of instances to list, among those that some instance has."""
        at = STATES.index(self.state) + 1
        following = (*STATES[at:], *STATES[:at])
        self.state = next((each for each in following if each in there or each == ANY_STATE), ANY_STATE)

    async def instances(self) -> TabRows:
        which = f"state {self.state}" if self.state else "every state"
        return await self._instances(self.state, INSTANCES, f"{which}; s: next state")

    async def waiting(self) -> TabRows:
        return await self._instances("waiting", WAITING, "")

    async def _instances(self, state: str, columns: Columns[InstanceState], told: str) -> TabRows:
        """The newest ones, the newest first."""
        listing = self._moor.list_instances(
            state=state or None,  # type: ignore[arg-type]  # it is one of them
            part=self.part,
            order="age",
            backwards=True,
            counted=True,
        )
        pages = await listing.beginning(INSTANCES_MAX)
        found = [each for page in pages for each in page.instances]
        count, or_more = pages[0].count or 0, " or more" if pages[0].more_than else ""
        of = f"the newest {INSTANCES_MAX} of {count:,}{or_more}" if count > INSTANCES_MAX or or_more else ""
        return TabRows(found[:INSTANCES_MAX], columns, "; ".join(filter(None, (self._named(), of, told))))

    def _named(self) -> str:
        return f"names with {self.part!r} (/ changes it)" if self.part else ""

    async def hosts(self) -> TabRows:
        part = self.part.casefold()
        found = [each for each in await first_of(HOST, self._moor, ALL) if part in each.host.name.casefold()]
        told = "; ".join(filter(None, (self._named(), "r: read again")))
        return TabRows(found, HOST.columns, told)

    async def moves(self) -> TabRows:
        found = await first_of(MIGRATION, self._moor, MOVES_MAX)
        more = f"the newest {MOVES_MAX}" if len(found) == MOVES_MAX else ""
        return TabRows(found, MIGRATION.columns, more)

    async def letters(self) -> TabRows:
        letters = await self._moor.list_dead_letters(limit=LETTERS_MAX)
        self._letters = {letter.handle: letter for letter in letters}
        return TabRows(letters, DEAD_LETTER.columns, "r: read again")

    async def about_instance(self, key: str) -> Callable[[], None]:
        found = await self._moor.look(key)
        history = await self._moor.history(UUID(key))
        explained = await self._moor.explain(key)
        return partial(_print_instance, found, history, explained)

    async def about_host(self, key: str) -> Callable[[], None]:
        host = await self._moor.show_host(key)
        page = await self._moor.list_hosts(name=key).page()
        there = host_in_cell(host.cell, host.name)
        found = await self._moor.list_instances(host=there).page(size=INSTANCES_MAX)
        return partial(_print_hosts, hosts_in(page), found)

    async def about_letter(self, key: str) -> Callable[[], None]:
        return partial(print_thing, DEAD_LETTER, self._letters[key])


def _print_instance(found: InstancesFound, changes: Sequence[Change], explained: ExplanationsFound) -> None:
    print_instances(rows_in(found))
    if changes:
        out.print()
        print_table(changes, HISTORY)
    for each in explained.explanations:
        out.print()
        print_choice(each, of_boot=False)


ABOUT: dict[str, Callable[[Lists, str], Awaitable[Callable[[], None]]]] = {
    "instances": Lists.about_instance,
    "waiting": Lists.about_instance,
    "moves": Lists.about_instance,
    "hosts": Lists.about_host,
    "letters": Lists.about_letter,
}


def _print_hosts(hosts: Sequence[HostShown], found: InstancesFound) -> None:
    for host in hosts:
        print_thing(HOST, host)
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


KEYS = """
1 to 6   the tabs: overview, instances, hosts, what waits, moves, dead letters
Enter    everything about the row
/        only names that contain a text: instances, what waits, and hosts; an empty text shows all
s        the next state of instances
r        read the tab again
?        this help
Escape   back
q        quit

Instances are the newest ones, the newest first; `moor list` and its filters show the others.
"""


class NameSearch(ModalScreen[str | None]):
    """Asks for a part of a name."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "back")]
    CSS = "NameSearch { align: center middle; } #part { width: 60%; }"

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def compose(self) -> ComposeResult:
        yield Input(self._part, placeholder="a part of the name; Enter", id="part")
        yield Footer()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


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
        Binding("slash", "search", "search"),
        Binding("s", "state", "state of instances", show=False),
        Binding("r", "again", "read again"),
        Binding("question_mark", "keys", "help"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, moor: Client, settings: Settings, every_s: float) -> None:
        super().__init__()
        self._viewer = CloudViewer(moor, settings)
        self._every_s = every_s
        self._lists = Lists(moor)
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

    def action_keys(self) -> None:
        self.push_screen(Details(lambda: out.print(KEYS, highlight=False)))

    @work(exclusive=True, group="search")
    async def action_search(self) -> None:
        part = await self.push_screen_wait(NameSearch(self._lists.part))
        if part is None:
            return
        self._lists.part = part
        if self.tab not in ("instances", "waiting", "hosts"):
            self.action_tab("instances")
        self.action_again()

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
        headings, rows = listed.columns.filled(listed.rows)
        table.add_columns(*headings)
        for each, cells in zip(listed.rows, rows, strict=True):
            table.add_row(*map(text_of, cells), key=listed.columns.name_of(each))
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


def top(
    bus: BusUrl = "",
    cells: Cells = "",
    *,
    every: Annotated[float, option(metavar="S", min=0.5, help="How often it is read again.")] = 2.0,
) -> None:
    """Watch the whole cloud: health, cells, rates, hosts, instances, what waits and why. Enter opens a row, q quits."""
    settings = command_settings(bus=bus, cells=cells)

    async def work(moor: Client) -> None:
        await Top(moor, settings, every).run_async()

    run_with(client(settings, operates=True, patience_s=5.0), work)
