"""The screen of `moor top`."""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static, TabbedContent, TabPane

from kit.errors import ConnectionLost, Failure, Refusal
from moor.asking import CommandClient
from moor.client.errors import ClientError
from moor.overview.gathering import CloudView, CloudViewer
from moor.overview.showing import overview_in_words
from moor.overview.top.lists import ABOUT, Lists, TabRows, as_text, filled
from moor.overview.top.rates import RATES, Rates
from moor.settings import Settings
from moor.tables import Rows

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
