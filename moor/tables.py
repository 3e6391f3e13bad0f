"""Tables for narrow terminals and pipes: only prose is wrapped; names and states are never wrapped or cut, and ids only to a
beginning that is as good as the whole.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Generic, TypeVar

from msgspec import Struct, structs
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moor.options import Form, form, out, printable

T = TypeVar("T")
R = TypeVar("R")

# The minimum width of a prose column: in a narrower one, each line would have a single word.
PROSE_WIDTH = 24
GAP = 2
# With -o wide each row is on one line, however long.
WIDTH_OF_WIDE = 10_000
# How many signs the bar of an amount has.
BAR = 8
# The time of a request and 12 bits of its instance: `01a20d47-58ad-5123`.
SHORT_ID = 18


class Amount(Struct, frozen=True):
    """A cell that says how much of something is used, with a bar."""

    used: int
    capacity: int

    @property
    def share(self) -> float:
        """At most 1; what has no capacity is full."""
        return min(self.used / self.capacity, 1.0) if self.capacity > 0 else 1.0

    @property
    def text(self) -> Text:
        filled = (
            -(-self.used * BAR // self.capacity) if 0 < self.used <= self.capacity else BAR * (self.used > 0)
        )
        colour = "red" if self.used > self.capacity else "yellow" if filled == BAR else "green"
        bar = (("█" * filled, colour), ("░" * (BAR - filled), "dim"))
        return Text.assemble(f"{self.used:,}/{self.capacity:,} ", *bar)


Cell = str | Text | Amount


class Columns(Struct, Generic[T], frozen=True):
    """How a table shows items of one type: for each heading, the function that makes the cell of an item.

    A cell is a text, printed as it is, or `styled`, or an `Amount`. The columns in `prose` may be wrapped; the cells of columns in
    `lists` have several lines; those in `numbers` stand below each other. Those in `ids` are ids: of an item for which the
    function holds, commands accept the beginning, too. `name` is how one names an item; its first cell, if nothing is said.
    """

    cells: Mapping[str, Callable[[T], Cell]]
    prose: Sequence[str] = ()
    lists: Sequence[str] = ()
    numbers: Sequence[str] = ()
    ids: Mapping[str, Callable[[T], bool]] = {}
    name: Callable[[T], str] | None = None

    def of(self, part: Callable[[Any], T]) -> "Columns[Any]":
        """These columns, of items of which each has one of T as a part."""

        def from_part(function: Callable[[T], R]) -> Callable[[Any], R]:
            return lambda item: function(part(item))

        cells = {heading: from_part(cell) for heading, cell in self.cells.items()}
        ids = {heading: from_part(may_be_short) for heading, may_be_short in self.ids.items()}
        return structs.replace(self, cells=cells, ids=ids, name=self.name and from_part(self.name))

    def name_of(self, item: T) -> str:
        if self.name is not None:
            return self.name(item)
        first, *_ = self.cells.values()
        return cell if isinstance(cell := first(item), str) else text_of(cell).plain

    def filled(self, items: Sequence[T]) -> tuple[list[str], list[list[Cell]]]:
        """The headings of the columns that are not empty, and their cells row by row; without items, all headings."""
        rows = [[cell(each) for cell in self.cells.values()] for each in items]
        wanted = [at for at in range(len(self.cells)) if not rows or any(text_of(row[at]) for row in rows)]
        return [[*self.cells][at] for at in wanted], [[row[at] for at in wanted] for row in rows]


# Headings, each with its cells: the first is the heading's own.
Headed = Sequence[tuple[str, Sequence[Text]]]


class Rows(Struct, Generic[T], frozen=True):
    """A table of these items, without rules and without empty columns.

    If it is wider than the terminal, ids are shortened, as far as they stay unique. If that is not enough, the columns of prose and
    lists are printed below each row, and at last those other columns that do not fit.
    """

    items: Sequence[T]
    columns: Columns[T]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self._headed(options.max_width)
        if not columns:
            return
        prose = {name: _width(cells) for name, cells in columns if name in self.columns.prose}
        whole = {name: _width(cells) for name, cells in columns if name not in prose}
        room = self._room(columns, options.max_width)
        if room >= sum(min(width, PROSE_WIDTH) for width in prose.values()):
            yield _side_by_side(columns, whole | _shared_out(room, prose), prose)
            return
        beside = _that_fit(
            {name: width for name, width in whole.items() if name not in self.columns.lists},
            options.max_width,
        )
        below = [name for name in whole if name not in beside and name not in self.columns.lists]
        for number, cells in enumerate(zip(*(cells for _, cells in columns), strict=True)):
            row = dict(zip((name for name, _ in columns), cells, strict=True))
            yield _line([_padded(row[name], width) for name, width in beside.items()])
            if number:
                values = [_labelled(name, row[name]) for name in below if row[name]]
                yield from _packed(values, options.max_width)
                lists = [line for name in self.columns.lists for line in row[name].split()]
                yield from (_line((Text(), line)) for line in lists)
                told = [_labelled(name, row[name]) for name in prose if row[name]]
                yield from (Padding(each, (0, 0, 0, GAP), expand=False) for each in told)

    def _headed(self, max_width: int) -> Headed:
        """The columns that are not empty; with short ids if the table is too wide otherwise."""
        columns = [
            (heading, [Text(heading, "bold"), *texts])
            for heading, cell in self.columns.cells.items()
            if any(texts := [text_of(cell(item)) for item in self.items])
        ]
        if self._fits(columns, max_width):
            return columns
        return [(name, self._shortened(name, cells)) for name, cells in columns]

    def _fits(self, columns: Headed, max_width: int) -> bool:
        prose = [_width(cells) for name, cells in columns if name in self.columns.prose]
        return self._room(columns, max_width) >= sum(min(width, PROSE_WIDTH) for width in prose)

    def _room(self, columns: Headed, max_width: int) -> int:
        """The part of this width that remains for prose."""
        whole = sum(_width(cells) for name, cells in columns if name not in self.columns.prose)
        return max_width - whole - GAP * (len(columns) - 1)

    def _shortened(self, name: str, cells: Sequence[Text]) -> Sequence[Text]:
        may_be_short = self.columns.ids.get(name)
        if may_be_short is None:
            return cells
        heading, *ids = cells
        length = unique_length([each.plain for each in ids])
        return [
            heading,
            *(
                Text(id_.plain[:length]) if may_be_short(item) else id_
                for item, id_ in zip(self.items, ids, strict=True)
            ),
        ]


def unique_length(ids: Iterable[str]) -> int:
    """So many characters at the beginning tell each of these ids from all others: SHORT_ID at least, and no dash at the end."""
    known = sorted({*ids})
    same = max((_same(*pair) for pair in pairwise(known)), default=0)
    length = max(same + 1, SHORT_ID)
    return length + any(each[length - 1 : length] == "-" for each in known)


def _same(one: str, other: str) -> int:
    """How many characters at the beginning of these texts are the same."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def _labelled(name: str, value: Text) -> Text:
    return Text.assemble((f"{name}: ", "dim"), value)


def _packed(values: Sequence[Text], max_width: int) -> Iterator[Text]:
    """These values side by side, on as many lines as this width needs."""
    line: list[Text] = []
    for value in values:
        if line and sum(each.cell_len + GAP for each in (*line, value)) > max_width:
            yield _line((Text(), *line))
            line = []
        line.append(value)
    if line:
        yield _line((Text(), *line))


def _that_fit(widths: Mapping[str, int], max_width: int) -> dict[str, int]:
    """The first of these columns, as many as this width has room for, and one at least."""
    fitting: dict[str, int] = {}
    for name, width in widths.items():
        if fitting and sum(fitting.values()) + width + GAP * len(fitting) > max_width:
            break
        fitting[name] = width
    return fitting


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


def _side_by_side(columns: Headed, widths: Mapping[str, int], prose: Collection[str]) -> Table:
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
    """Print the items as a table that is as narrow as the terminal, if long texts can be folded that far. Nothing is lost."""
    if form() is Form.WIDE:
        out.width = WIDTH_OF_WIDE
    out.print(Rows(tuple(items), columns), crop=False)


def styled(markup: str) -> Text:
    """A cell of a table with rich markup in it, such as colours. Texts from elsewhere must be escaped in it."""
    return Text.from_markup(markup, emoji=False)


def text_of(cell: Cell) -> Text:
    """The text of a cell as it is shown and measured: control characters are escapes."""
    if isinstance(cell, str):
        return Text(printable(cell))
    return cell.text if isinstance(cell, Amount) else cell


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
