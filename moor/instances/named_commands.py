"""Commands about what is stored under names, flavors and images: `list`, `show` and `delete`."""

from collections.abc import Callable, Sequence
from typing import Any

import typer
from rich.markup import escape

from bus.message import Message
from moor.completing import Completer
from moor.message_commands import command_that_sends
from moor.options import out
from moor.tables import Columns


def add_named_commands(
    app: typer.Typer,
    word: str,
    *,
    ask: type[Message],
    delete: type[Message],
    answer: type[Any],
    items: Callable[[Any], Sequence[Any]],
    columns: Columns[Any],
    show: Callable[[Any], None],
    completes: Completer,
) -> None:
    """The commands for things of which one is a `word`. They are asked for and deleted by these messages."""
    missing = missing_text(word)
    app.command("list")(
        command_that_sends(
            ask,
            fixed=("name",),
            words=f"List all stored {word}s.",
            answer=answer,
            items=items,
            show=columns,
            nothing=f"no {word}s are stored",
        )
    )
    app.command("show")(
        command_that_sends(
            ask,
            arguments={"name": "NAME"},
            words=f"Show one stored {word}.",
            answer=answer,
            items=items,
            is_about_one=True,
            missing=missing,
            show=show,
            completes=completes,
        )
    )
    app.command("delete")(
        command_that_sends(
            delete,
            arguments={"name": "NAME"},
            answer=answer,
            items=items,
            is_about_one=True,
            missing=missing,
            show=lambda gone: out.print(f"{word} {escape(gone.name)} is deleted"),
            completes=completes,
            operates=True,
        )
    )


def missing_text(word: str) -> str:
    return f"there is no {word} {{name!r}}, so nothing was done; `moor {word} list` shows all {word}s"
