"""Tables of `moor` in wide terminals and in narrow ones."""

import io
from collections.abc import Sequence
from operator import itemgetter

import pytest
from rich.console import Console

from moor.tables import Columns, Rows

ID = "01a1ff0b-4557-5165-814e-783a7c801989"
STATES = ("accepted", "placed", "building", "active", "error", "deleting", "deleted")
REASON = "no host has room for that, and there are many reasons for it"


def shown(width: int, rows: Sequence[Sequence[str]]) -> list[str]:
    columns = Columns[Sequence[str]](
        {"id": itemgetter(0), "name": itemgetter(1), "state": itemgetter(2), "reason": itemgetter(3)},
        prose=("reason",),
    )
    console = Console(file=io.StringIO(), width=width)
    console.print(Rows(rows, columns), crop=False)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [20, 50, 60, 80, 200])
def test_ids_and_states_are_never_folded(width: int) -> None:
    lines = shown(width, [(ID, "web-1", state, REASON) for state in STATES])

    starts = [at for at, line in enumerate(lines) if ID in line]
    assert len(starts) == len(STATES)
    for state, at, end in zip(STATES, starts, [*starts[1:], len(lines)], strict=True):
        # What does not fit beside the id follows below it.
        words = " ".join(lines[at:end]).split()
        assert words[0] == ID
        assert {"web-1", state} <= {*words}


def test_with_room_a_row_is_one_line() -> None:
    assert shown(200, [(ID, "web-1", "error", REASON)]) == [
        f"id{'':34}  name   state  reason",
        f"{ID}  web-1  error  {REASON}",
    ]


def test_with_less_room_long_texts_are_wrapped_in_their_column() -> None:
    _, first, second, third = shown(80, [(ID, "web-1", "error", REASON)])

    assert first == f"{ID}  web-1  error  no host has room for that,"
    assert (second.strip(), third.strip()) == ("and there are many reasons", "for it")


def test_without_room_long_texts_follow_below_the_row() -> None:
    assert shown(58, [(ID, "web-1", "error", "no room"), (ID, "web-2", "active", "")])[1:] == [
        f"{ID}  web-1  error",
        "  reason: no room",
        f"{ID}  web-2  active",
    ]


def test_an_empty_column_is_left_out() -> None:
    assert shown(80, [(ID, "", "active", "")]) == [f"id{'':34}  state", f"{ID}  active"]


@pytest.mark.parametrize("width", [30, 80, 200])
def test_cells_of_several_lines_are_never_folded(width: int) -> None:
    columns = Columns[Sequence[str]](
        {"queue": itemgetter(0), "kind": itemgetter(1), "bound to": itemgetter(2)}, lists=("bound to",)
    )
    bindings = [f"moor.cell.harbour a_rather_long_key_of_a_binding_{number}.harbour" for number in range(3)]
    rows = [("conductor.harbour.work", "work", "\n".join(bindings))]
    console = Console(file=io.StringIO(), width=width)

    console.print(Rows(rows, columns), crop=False, highlight=False)

    assert isinstance(console.file, io.StringIO)
    _, first, *_ = lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert first.split()[:2] == ["conductor.harbour.work", "work"]
    for binding in bindings:
        assert sum(line.endswith(binding) for line in lines) == 1
