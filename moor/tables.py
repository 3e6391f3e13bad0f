"""Tables for narrow terminals and pipes: only prose is wrapped; ids, names and states are never wrapped or cut."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moor.options import out

T = TypeVar("T")

# The minimum width of a prose column: in a narrower one, each line would have a single word.
PROSE_WIDTH = 24
GAP = 2


class Columns(Struct, Generic[T], frozen=True):
    """How a table shows items of one type: for each heading, the function that makes the cell of an item.

    A cell is a text, printed as it is, or `styled`. The columns in `prose` may be wrapped; the cells of columns in `lists`
    have several lines.
    """

    cells: Mapping[str, Callable[[T], str | Text]]
    prose: Sequence[str] = ()
    lists: Sequence[str] = ()


class Rows(Struct, Generic[T], frozen=True):
    """A table of these items, without rules and without empty columns. If the columns of prose and lists do not fit beside the
    others, they are printed below each row.
    """

    items: Sequence[T]
    columns: Columns[T]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [
            (heading, [Text(heading, "bold"), *texts])
            for heading, cell in self.columns.cells.items()
            if any(texts := [_text(cell(item)) for item in self.items])
        ]
        if not columns:
            return
        prose = {name: _width(cells) for name, cells in columns if name in self.columns.prose}
        whole = {name: _width(cells) for name, cells in columns if name not in prose}
        room = options.max_width - sum(whole.values()) - GAP * (len(columns) - 1)
        if room >= sum(min(width, PROSE_WIDTH) for width in prose.values()):
            yield _side_by_side(columns, whole | _shared_out(room, prose), prose)
            return
        for number, cells in enumerate(zip(*(cells for _, cells in columns), strict=True)):
            row = dict(zip((name for name, _ in columns), cells, strict=True))
            yield _line(
                [_padded(row[name], width) for name, width in whole.items() if name not in self.columns.lists]
            )
            if number:
                lists = [line for name in self.columns.lists for line in row[name].split()]
                yield from (_line((Text(), line)) for line in lists)
                yield from (Padding(row[name], (0, 0, 0, GAP), expand=False) for name in prose if row[name])


def lines_of(
    lines: Sequence[Sequence[RenderableType]], *, gap: int = GAP, justify: JustifyMethod = "left"
) -> Table:
    """A table without headings, whose cells are folded and never cut. `justify` is that of the first column."""
    table = Table.grid(padding=(0, gap))
    for number in range(max(map(len, lines))):
        table.add_column(justify="left" if number else justify, overflow="fold")
    for line in lines:
        table.add_row(*line)
    return table


def _side_by_side(
    columns: Sequence[tuple[str, Sequence[Text]]], widths: Mapping[str, int], prose: Collection[str]
) -> Table:
    last, _ = columns[-1]
    table = Table.grid()
    # Each column but the last includes the gap to the next one.
    for name, _ in columns:
        table.add_column(width=widths[name] + (0 if name == last else GAP), no_wrap=name not in prose)
    for cells in zip(*(cells for _, cells in columns), strict=True):
        row = zip((name for name, _ in columns), cells, strict=True)
        table.add_row(
            *(Padding(cell, (0, GAP, 0, 0)) if name in prose and name != last else cell for name, cell in row)
        )
    return table


def _line(cells: Iterable[Text]) -> Text:
    line = Text(" " * GAP, no_wrap=True, overflow="ignore").join(cells)
    line.rstrip()
    return line


def _padded(cell: Text, width: int) -> Text:
    padded = cell.copy()
    padded.pad_right(width - cell.cell_len)
    return padded


def print_table(items: Iterable[T], columns: Columns[T]) -> None:
    """Print the items as a table that is as narrow as the terminal, if long texts can be folded that far. Nothing is cut."""
    out.print(Rows(tuple(items), columns), crop=False)


def styled(markup: str) -> Text:
    """A cell of a table with rich markup in it, such as colours. Texts from elsewhere must be escaped in it."""
    return Text.from_markup(markup, emoji=False)


def _text(cell: str | Text) -> Text:
    return Text(cell) if isinstance(cell, str) else cell


def _shared_out(room: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """Divide the width `room` among columns of prose: narrow ones get all they need, the others equal parts.

    A column that needs more than PROSE_WIDTH gets at least that.
    """
    shares = {}
    for left, (name, whole) in zip(
        range(len(wanted), 0, -1), sorted(wanted.items(), key=lambda each: each[1]), strict=True
    ):
        shares[name] = min(whole, max(room // left, PROSE_WIDTH))
        room -= shares[name]
    return shares


def _width(cells: Sequence[Text]) -> int:
    lines: list[Text] = [line for cell in cells for line in cell.split(allow_blank=True)]
    return max(line.cell_len for line in lines)
