"""What several commands take: flags, or the environment."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console

from bus.broker import Broker, Connection, ConnectionLost, Refusal
from bus.urls import broker_at

T = TypeVar("T")

out = Console()
err = Console(stderr=True)

BusUrl = Annotated[
    str,
    typer.Option(
        "--bus",
        envvar="MOOR_BUS_URL",
        metavar="URL",
        help="The broker: amqp://user:password@host/vhost, amqps://..., or unix:///path of a running moor.",
    ),
]
DatabaseUrl = Annotated[
    str,
    typer.Option(
        "--db",
        envvar="MOOR_DB_URL",
        metavar="URL",
        help="The database: postgresql+asyncpg://user:password@host/name or sqlite+aiosqlite:///path.",
    ),
]
Cells = Annotated[
    str,
    typer.Option(
        "--cells", envvar="MOOR_CELLS", metavar="NAME,NAME", help="The cells that this broker serves."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]


def cells_of(names: str) -> tuple[str, ...]:
    """The cells in a comma-separated list; none of them may look like anything but a name."""
    cells = tuple(name.strip() for name in names.split(",") if name.strip())
    for cell in cells:
        if (
            not cell.replace("-", "").replace("_", "").isalnum()
            or cell != cell.lower()
            or not cell[0].isalnum()
        ):
            raise typer.BadParameter(
                f"cell {cell!r}: only a-z, 0-9, - and _, beginning with a letter or digit"
            )
    return cells


def with_connection(url: str, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Connect, do it, disconnect; what the broker refuses is said in a line, and the exit code tells."""

    async def connected() -> T:
        broker = _broker(url)
        connection = await broker.connect()
        try:
            return await work(connection)
        finally:
            await connection.close()

    return run(connected())


def run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except ConnectionLost as lost:
        fail(f"no broker: {lost}")
    except Refusal as refused:
        fail(f"the broker refused: {refused}")


def fail(why: str) -> NoReturn:
    """Say why on stderr, and end with exit code 1."""
    err.print(f"[red]{why}[/red]")
    raise typer.Exit(1)


def _broker(url: str) -> Broker:
    try:
        return broker_at(url)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None
