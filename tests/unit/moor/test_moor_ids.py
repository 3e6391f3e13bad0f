"""What `moor` says of an id that is none, and of other wrong values."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from moor.commands import app, command_of, names


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["boot", "--request-id"], "--request-id"),
        (["group", "create", "web", "--policy", "affinity", "--id"], "--id"),
        (["aggregate", "create", "rack", "--id"], "--id"),
        (["provider", "create", "disk", "--id"], "--id"),
    ],
)
def test_a_value_that_is_no_uuid_is_named_with_its_argument_on_one_line(words: list[str], name: str) -> None:
    ended = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words, "web-1"])

    assert ended.exit_code == 2
    assert f"Invalid value for '{name}': 'web-1' is not a UUID" in ended.output


@pytest.mark.parametrize(
    ("written", "words", "said"),
    [
        ("", ["boot", "--count", "many"], "--count': 'many' is not a valid int"),
        ("", ["list", "--limit", "0"], "--limit': '0': 0 is not in the range x>=1"),
        ("", ["host", "list", "--mode", "off"], "--mode': 'off' is not one of"),
        ("", ["host", "set"], "Missing argument 'NAME'"),
        (
            "compute_hosts = -3",
            ["up"],
            "compute_hosts is -3 ({file}): must be a whole number, at least 0",
        ),
        ("compute_hosts = 20000", ["up"], "20000 is not in the range 1<=x<=10000. ({file})"),
        ("auth = 'nobody'", ["run", "placement-api"], "'nobody' is not one of * ({file})"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_named_with_the_file_that_has_it(
    tmp_path: Path, written: str, words: list[str], said: str
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(written)

    ended = CliRunner(env={"COLUMNS": "500"}).invoke(app, ["--config", str(file), *words])

    assert ended.exit_code == 2
    parts = [part.replace("{file}", str(file)) for part in said.split("*")]
    assert all(part in ended.output for part in parts)


def numbers_of(command: Any, name: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    """The options of a command and of its parts that take any number, each with its command."""
    for option in command.params:
        if option.type.name in ("float", "float range"):
            yield f"{name} {option.name}", (command, max(option.opts, key=len))
    for part, below in getattr(command, "commands", {}).items():
        yield from numbers_of(below, f"{name} {part}")


NUMBERS = dict(each for name in names() for each in numbers_of(command_of(name), name))


@pytest.mark.parametrize(("command", "option"), NUMBERS.values(), ids=[*NUMBERS])
def test_no_option_is_nan(command: Any, option: str) -> None:
    with pytest.raises(typer.BadParameter, match="'nan': nan is not a number") as wrong:
        command.make_context("moor", [option, "nan"])

    assert option in wrong.value.format_message()
