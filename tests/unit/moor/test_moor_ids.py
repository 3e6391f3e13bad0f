"""What `moor` says of an id that is none."""

from uuid import uuid4

import pytest
from typer.testing import CliRunner

from moor.commands import app


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["show"], "ID"),
        (["delete", str(uuid4())], "ID..."),
        (["history"], "ID"),
        (["migrate"], "ID"),
        (["group", "show"], "ID"),
        (["ring", "show"], "NODE"),
        (["boot", "--group"], "--group"),
        (["boot", "--same-host"], "--same-host"),
        (["boot", "--aggregate", str(uuid4()), "--aggregate"], "--aggregate"),
    ],
)
def test_a_value_that_is_no_uuid_is_named_with_its_argument_on_one_line(words: list[str], name: str) -> None:
    ended = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words, "web-1"])

    assert ended.exit_code == 2
    assert f"Invalid value for '{name}': 'web-1' is not a UUID" in ended.output
