"""What `moor` says of an id that is none, and of other wrong values."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

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
        ("", ["boot", "--count", "many"], "--count': 'many' is not a whole number"),
        ("", ["list", "--limit", "0"], "--limit': '0' must be at least 1"),
        ("", ["host", "list", "--mode", "off"], "--mode': 'off' is none of"),
        ("", ["host", "set"], "Missing argument '[NAME...] MODE'"),
        (
            "compute_hosts = -3",
            ["up"],
            "compute_hosts is -3 ({file}): must be a whole number, at least 0",
        ),
        ("compute_hosts = 20000", ["up"], "20000 must be at least 1 and at most 10,000 ({file})"),
        ("auth = 'nobody'", ["run", "placement-api"], "'nobody' is none of * ({file})"),
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
        if option.type.name == "number":
            yield f"{name} {option.name}", (command, max(option.opts, key=len))
    for part, below in getattr(command, "commands", {}).items():
        yield from numbers_of(below, f"{name} {part}")


NUMBERS = dict(each for name in names() for each in numbers_of(command_of(name), name))


@pytest.mark.parametrize(("command", "option"), NUMBERS.values(), ids=[*NUMBERS])
def test_no_option_is_nan(command: Any, option: str) -> None:
    with pytest.raises(click.BadParameter, match="'nan' is not a number") as wrong:
        command.make_context("moor", [option, "nan"])

    assert option in wrong.value.format_message()


def test_a_mistyped_command_is_told_the_nearest_ones() -> None:
    for words, near in ((["lst"], "'list'"), (["demmo"], "'demo'"), (["group", "sho"], "'show'")):
        ended = CliRunner().invoke(app, words)
        assert (ended.exit_code, f"Did you mean {near}?" in ended.output) == (2, True)


def test_the_shell_is_taught_to_complete_once_and_only_a_shell_that_can(tmp_path: Path) -> None:
    started = tmp_path / ".bashrc"
    started.write_text("alias ll='ls -l'\n")
    at_home = {"HOME": str(tmp_path)}
    for _ in range(2):
        ended = CliRunner(env=at_home | {"SHELL": "/bin/bash"}).invoke(app, ["--install-completion"])
        assert ended.exit_code == 0

    assert started.read_text() == "alias ll='ls -l'\neval \"$(_MOOR_COMPLETE=bash_source moor)\"\n"
    refused = CliRunner(env=at_home | {"SHELL": "/bin/csh"}).invoke(app, ["--install-completion"])
    assert (refused.exit_code, "SHELL is 'csh'" in refused.output) == (2, True)
