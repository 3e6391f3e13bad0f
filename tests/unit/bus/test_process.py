"""The environment that a worker needs before it starts."""

import pytest

from kit.process import exiting_if_wrong, make_ready


def test_a_missing_variable_is_named_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"), exiting_if_wrong():
        make_ready({"MOOR_BUS_URL": "", "MOOR_CELL": "c1"}, "MOOR_CELL", "MOOR_BUS_URL", "MOOR_DB_URL")

    said = capsys.readouterr().err
    assert (
        said == "MOOR_BUS_URL and MOOR_DB_URL must be set: where the broker is, and where the database is\n"
    )


def test_without_a_missing_variable_there_is_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    make_ready({"MOOR_BUS_URL": "unix:///x"}, "MOOR_BUS_URL")

    assert capsys.readouterr().err == ""
