"""An interrupted long run continues where it stopped."""

from pathlib import Path

import pytest

from tests.simulation import __main__ as command
from tests.simulation.done_seeds import DoneSeeds


def test_results_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "done.txt"
    DoneSeeds(path).add([1, 2], {2: "12.5  capacity is law: so"}, 1.5)
    DoneSeeds(path).add([4], {}, 2.0)

    done = DoneSeeds(path)

    assert done.left_of(range(1, 6)) == [3, 5]
    assert done.broken_of(range(1, 6)) == {2: "12.5  capacity is law: so"}
    assert done.took_s == 3.5


def test_a_line_that_was_cut_off_is_no_result(tmp_path: Path) -> None:
    path = tmp_path / "done.txt"
    path.write_text("1 held\n2 he")

    assert DoneSeeds(path).left_of((1, 2)) == [2]


def test_a_run_in_which_all_seeds_are_done_runs_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "done.txt"
    DoneSeeds(path).add([7, 8], {8: "it broke"}, 3.0)

    code = command.main(["--seeds", "2", "--from", "7", "--done", str(path)])

    told = capsys.readouterr().out
    assert code == 1
    assert "seed 8: it broke" in told
    assert "2 seeds done, 0 of them now" in told


def test_a_run_of_moves_has_only_seeds_with_moves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "done.txt"
    DoneSeeds(path).add([10, 27, 30], {}, 3.0)

    code = command.main(["--moves", "--seeds", "3", "--from", "8", "--done", str(path)])

    assert code == 0
    assert "3 seeds done, 0 of them now" in capsys.readouterr().out
