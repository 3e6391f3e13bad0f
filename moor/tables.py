"""Tables for narrow terminals and pipes: only prose is wrapped; ids, names and states are never wrapped or cut."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moor.options import out

# The minimum width of a prose column: in a narrower one, each line would have a single word.
PROSE_WIDTH = 24
GAP = 2


class Rows:
    """A table without rules and without empty columns. The columns in `prose` may be wrapped; the cells of those in `lists`
    have several lines. If these columns do not fit beside the others, they are printed below each row.
    """

    def __init__(self, columns: Sequence[str], prose: Sequence[str], lists: Sequence[str]) -> None:
        self._columns = columns
        self._prose = prose
        self._lists = lists
        self._rows: list[Sequence[Text]] = []

    def add_row(self, *cells: str | Text) -> None:
        self._rows.append([Text.from_markup(each) if isinstance(each, str) else each for each in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [
            (name, [Text(name, "bold"), *cells])
            for name, cells in zip(self._columns, zip(*self._rows, strict=True), strict=True)
            if any(cells)
        ]
        prose = {name: _width(cells) for name, cells in columns if name in self._prose}
        whole = {name: _width(cells) for name, cells in columns if name not in prose}
        room = options.max_width - sum(whole.values()) - GAP * (len(columns) - 1)
        if room >= sum(min(width, PROSE_WIDTH) for width in prose.values()):
            yield _side_by_side(columns, whole | _shared_out(room, prose), prose)
            return
        for number, cells in enumerate(zip(*(cells for _, cells in columns), strict=True)):
            row = dict(zip((name for name, _ in columns), cells, strict=True))
            yield _line(
                [_padded(row[name], width) for name, width in whole.items() if name not in self._lists]
            )
            if number:
                lists = [line for name in self._lists for line in row[name].split()]
                yield from (_line((Text(), line)) for line in lists)
                yield from (Padding(row[name], (0, 0, 0, GAP), expand=False) for name in prose if row[name])


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


def table_of(*columns: str, prose: Sequence[str] = (), lists: Sequence[str] = ()) -> Rows:
    return Rows(columns, prose, lists)


def print_table(rows: Rows) -> None:
    """Print the table. A row that still does not fit is printed longer than the terminal's line, not cut."""
    out.print(rows, highlight=False, crop=False)


def _shared_out(room: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """Share the room: narrow columns get what they need, the others equal parts, but at least PROSE_WIDTH."""
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
