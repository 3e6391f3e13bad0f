"""`moor flavor`: flavors that are stored under names, for all."""

from typing import Annotated

import typer
from msgspec import structs
from rich.markup import escape

from bus.messages.build import Flavor
from bus.messages.flavors import AskFlavors, CreateFlavor, DeleteFlavor, FlavorsFound
from moor.asking import answer_of, ask_bus
from moor.completing import complete_flavors
from moor.instances.named_commands import add_named_commands
from moor.instances.request_options import FlavorOptions
from moor.option_structs import with_options
from moor.options import BusUrl, Output, command_settings, out
from moor.showing import grid_of, print_one
from moor.tables import Columns

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Flavors that are stored under names: `moor boot --flavor NAME`.",
)


def _print(flavor: Flavor) -> None:
    sizes = [name for name in Flavor.__struct_fields__ if name not in ("name", "extra_specs")]
    out.print(
        grid_of(
            ("flavor", escape(flavor.name)),
            *((name, str(amount)) for name in sizes if (amount := getattr(flavor, name))),
            *((escape(key), escape(value)) for key, value in sorted(flavor.extra_specs.items())),
        )
    )


FLAVORS = Columns[Flavor](
    {
        "name": lambda each: each.name,
        "vcpus": lambda each: str(each.vcpus),
        "ram": lambda each: str(each.ram_mb),
        "disk": lambda each: str(each.root_gb),
        "extra specs": lambda each: ", ".join(
            f"{key}={value}" for key, value in sorted(each.extra_specs.items())
        ),
    },
    prose=("extra specs",),
)


@app.command("create")
@with_options
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    bus: BusUrl = "",
    *,
    flavor: FlavorOptions,
    _output: Output = None,
) -> None:
    """Store a flavor under a name. --flavor takes the values of another one. Repeating the command is harmless."""
    written = structs.replace(flavor.read(command_settings(bus=bus)), name=name)
    found = ask_bus(bus, lambda asking: answer_of(asking, CreateFlavor(flavor=written), FlavorsFound))
    print_one(found.flavors[0], _print)


add_named_commands(
    app,
    "flavor",
    ask=AskFlavors,
    delete=DeleteFlavor,
    answer=FlavorsFound,
    items=lambda found: found.flavors,
    columns=FLAVORS,
    show=_print,
    completes=complete_flavors,
)
