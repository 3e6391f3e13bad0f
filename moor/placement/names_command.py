"""`moor trait` and `moor class`: lists, creates and deletes custom traits and resource classes."""

from collections.abc import Callable
from typing import Annotated

import typer
from msgspec import Struct

from bus.messages.administration import (
    AskNames,
    CreateClass,
    CreateTrait,
    DeleteClass,
    DeleteTrait,
    KindOfNames,
    NamesFound,
    Write,
)
from moor.asking import PAGE, CommandClient, ask_bus, items_of
from moor.naming import CUSTOM, standard_classes, standard_traits
from moor.options import BusUrl, Output, say
from moor.placement.providers_command import write
from moor.showing import print_all, print_one
from moor.tables import Columns


class NameShown(Struct, frozen=True):
    name: str
    kind: str


NAMES = Columns[NameShown]({"name": lambda each: each.name, "kind": lambda each: each.kind})

_NewName = Annotated[
    str, typer.Argument(metavar="NAME", help="CUSTOM_ and capitals, digits and underscores.")
]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The name, with CUSTOM_.")]


def _app_of(
    what: str,
    of: KindOfNames,
    create: Callable[[str], Write],
    delete: Callable[[str], Write],
    standard: Callable[[], list[str]],
) -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True, add_completion=False, help=f"Custom {what}: list, create and delete them."
    )

    @app.command("list", help=f"List the custom {what}, ordered by name.")
    def list_names(
        bus: BusUrl = "",
        *,
        every: Annotated[bool, typer.Option("--all", help="Also the standard ones.")] = False,
        _output: Output = None,
    ) -> None:
        custom = ask_bus(bus, lambda asking: _custom(asking, of))
        shown = [NameShown(name, "custom") for name in custom]
        if every:
            shown += [NameShown(name, "standard") for name in sorted(standard())]
        print_all(shown, NAMES, f"no custom {what}")

    @app.command("create", help=f"Create one of the custom {what}. Repeating the command is harmless.")
    def create_name(name: _NewName, bus: BusUrl = "", *, _output: Output = None) -> None:
        _check_custom(name)
        ask_bus(bus, lambda asking: write(asking, create(name)))
        print_one(NameShown(name, "custom"), NAMES)

    @app.command("delete", help=f"Delete one of the custom {what}. Refused while a provider has it.")
    def delete_name(name: _Name, bus: BusUrl = "", *, _output: Output = None) -> None:
        _check_custom(name)
        ask_bus(bus, lambda asking: write(asking, delete(name)))
        print_one(NameShown(name, "custom"), lambda gone: say(f"deleted {gone.name}"))

    return app


def _check_custom(name: str) -> None:
    if not name.startswith(CUSTOM):
        raise typer.BadParameter(
            f"NAME is {name!r}, must begin with {CUSTOM}: only such can be created and deleted"
        )


async def _custom(asking: CommandClient, of: KindOfNames) -> list[str]:
    return await items_of(asking, AskNames(of=of, limit=PAGE), NamesFound, lambda page: page.names)


trait = _app_of(
    "traits",
    "traits",
    lambda name: CreateTrait(name=name),
    lambda name: DeleteTrait(name=name),
    standard_traits,
)
class_ = _app_of(
    "resource classes",
    "classes",
    lambda name: CreateClass(name=name),
    lambda name: DeleteClass(name=name),
    standard_classes,
)
