"""Commands that send a message take its fields as arguments and options."""

from collections.abc import Callable
from typing import Annotated
from uuid import UUID

import pytest
import typer
from msgspec import Meta
from typer.testing import CliRunner

from bus.message import ProjectMessage
from bus.messages.stored_names import CreateGroup
from engine.inventories import GroupId, GroupPolicy, Label
from moor.message_commands import PAGING, with_options

ID = "0f5f0fd5-0000-4000-8000-000000000001"


class Berth(ProjectMessage, frozen=True, tag="test.berth"):
    """Give a ship a berth."""

    id: Annotated[GroupId, Meta(description="the berth's id")]
    ship: Annotated[Label, Meta(description="the ship's name, such as [blue]")] = ""
    kind: Annotated[GroupPolicy, Meta(description="which berth")] = "affinity"
    days: Annotated[int, Meta(ge=1, le=9), Meta(description="how long it stays")] = 2
    after: Label = ""


def taking(sent: list[object], words: str | None = None) -> Callable[..., None]:
    def command(order: Berth) -> None:
        sent.append(order)

    command.__doc__ = words
    return with_options(command, {"ship": "NAME"})


def run(command: Callable[..., None], *words: str) -> tuple[int, str]:
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command()(command)
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
    return done.exit_code, done.output


def test_the_message_has_the_values_of_its_arguments_and_options() -> None:
    sent: list[object] = []

    words = ("Hafnia", "--kind", "anti-affinity", "--days", "9", "--id", ID, "--project", "p")
    assert run(taking(sent), *words) == (0, "")

    assert sent == [Berth(id=GroupId(UUID(ID)), ship="Hafnia", kind="anti-affinity", days=9, project="p")]


def test_defaults_are_the_message_s_own_and_a_required_id_is_a_new_one() -> None:
    sent: list[object] = []

    for _ in range(2):
        assert run(taking(sent), "Hafnia") == (0, "")

    first, second = sent
    assert isinstance(first, Berth)
    assert isinstance(second, Berth)
    assert first == Berth(id=first.id, ship="Hafnia")
    assert first.id != second.id


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "Missing argument 'NAME'"),
        (("x", "--kind", "apart"), "--kind is 'apart', must be one of affinity, anti-affinity, soft-"),
        (("x", "--days", "0"), "'--days'"),
        (("x", "--days", "10"), "'--days'"),
        (("x", "--id", "7"), "'7' is not a UUID"),
        (("x", "--after", "y"), "No such option: --after"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_sent(words: tuple[str, ...], error: str) -> None:
    sent: list[object] = []

    code, said = run(taking(sent), *words)

    assert (code, error in said, sent) == (2, True, []), said


def test_the_help_is_the_message_s_own() -> None:
    code, said = run(taking([]), "--help")

    assert code == 0
    for part in (
        "Give a ship a berth.",
        "The ship's name, such as [blue].",
        "How long it stays.",
        "[default: 2]",
    ):
        assert part in said


def test_a_command_s_own_words_come_before_those_of_its_message() -> None:
    _, said = run(taking([], "Moor a ship."), "--help")

    assert ("Moor a ship." in said, "Give a ship a berth." in said) == (True, False)


def test_a_fixed_field_is_no_option_and_keeps_its_default() -> None:
    sent: list[object] = []

    def command(order: Berth) -> None:
        sent.append(order)

    fixed = with_options(command, {"id": "ID"}, ("days", *PAGING))

    code, said = run(fixed, ID, "--days", "3")
    assert (code, "No such option: --days" in said, sent) == (2, True, [])
    assert run(fixed, ID) == (0, "")
    assert sent == [Berth(id=GroupId(UUID(ID)))]


def test_a_field_that_nothing_describes_is_no_option() -> None:
    def command(order: CreateGroup) -> None: ...

    with_options(command)

    class Silent(ProjectMessage, frozen=True, tag="test.silent"):
        ship: Label

    def silent(order: Silent) -> None: ...

    with pytest.raises(AssertionError, match="ship has no description"):
        with_options(silent)
