"""Reads and writes a file of flavors, in TOML or JSON. For each: its name, its sizes, its extra specs, and its alternatives.

    [metal]
    vcpus = 8                    # overridden below: a node is requested by its class alone
    ram_mb = 65536
    root_gb = 480

    [metal.extra_specs]
    "resources:VCPU" = "0"
    "resources:MEMORY_MB" = "0"
    "resources:DISK_GB" = "0"
    "resources:CUSTOM_BAREMETAL" = "1"

    [large]
    vcpus = 8
    ram_mb = 65536
    root_gb = 480
    alternatives = ["metal"]     # other flavors of this file: an instance gets the first one for which there is a host

The file serves the commands that make requests: each request contains all that it needs. Operators may also store flavors for all
(`moor flavor create`). If the user names a file, a name is looked up there alone; else among the stored flavors, and then in the
file of a `moor up` on this machine.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from bus.messages.build import Flavor
from bus.messages.flavors import AskFlavors, FlavorsFound
from moor.asking import answer_of, client
from moor.options import option_of, run_with, wrong_value
from moor.settings import TOP, Settings


class BadFlavors(ValueError):  # noqa: N818 - named for what it is
    """A file of flavors cannot be read; the message names the file, the field and the reason."""


Flavors = Mapping[str, Flavor]
RESOURCES, CUSTOM = "resources:", "CUSTOM_"
ALTERNATIVES = "alternatives"
FlavorsFile = Annotated[
    Path | None, option_of(TOP, "flavors", "--flavors", metavar="FILE", show_default=False)
]


def known_flavors(file: Path | None, settings: Settings) -> Flavors | None:
    """The flavors of the named file, or else of a `moor up` on this machine; None if there is neither."""
    if file is None and not (settings.is_of_up and settings.flavors_file.is_file()):
        return None
    with wrong_value("--flavors: "):
        return read_flavors(file or settings.flavors_file)


def flavor_named(
    name: str, file: Path | None, settings: Settings, flag: str = "--flavor", project: str = ""
) -> Flavor:
    flavors = known_flavors(file, settings)
    if file is None and (stored := _stored(name, settings, project)) is not None:
        return stored
    if flavors is None:
        raise typer.BadParameter(
            f"{flag} is {name!r}: no flavor of this name is stored (`moor flavor list`), and no file of flavors is named: "
            "give --flavors or MOOR_FLAVORS"
        )
    if name not in flavors:
        also = "" if file is not None else "; nor is it stored (`moor flavor list`)"
        raise typer.BadParameter(
            f"{flag} is {name!r}, which the file does not have; it has {', '.join(flavors) or 'none'}{also}"
        )
    return flavors[name]


def flavor_names(file: Path | None, settings: Settings) -> list[str]:
    """The names of the flavors in the file that is named, or else in that of a `moor up --nodes` on this machine."""
    return [*(known_flavors(file, settings) or ())]


def _stored(name: str, settings: Settings, project: str) -> Flavor | None:
    found = run_with(
        client(settings),
        lambda asking: answer_of(asking, AskFlavors(name=name, project=project), FlavorsFound),
    )
    return next(iter(found.flavors), None)


def alternatives_of(name: str, file: Path | None, settings: Settings) -> tuple[Flavor, ...]:
    """The alternatives that the file names for this flavor of it; none for a flavor that is not from the file."""
    with wrong_value("--flavors: "):
        if known_flavors(file, settings) is None:
            return ()
        written = _read(file or settings.flavors_file)
        return (
            tuple([written[other].flavor for other in written[name].alternatives]) if name in written else ()
        )


def read_flavors(file: Path) -> Flavors:
    return {name: each.flavor for name, each in _read(file).items()}


class _Written(NamedTuple):
    """A flavor of a file, with the names of its alternatives in the same file."""

    flavor: Flavor
    alternatives: Sequence[str]


def _read(file: Path) -> Mapping[str, _Written]:
    import tomllib  # noqa: PLC0415 - most commands read no flavors

    try:
        text = file.read_text()
        written = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as problem:
        raise BadFlavors(f"{file} cannot be read: {problem}") from None
    if not isinstance(written, dict):
        raise BadFlavors(f"{file}: must be a table of flavors by name")
    return {name: _flavor(file, name, each, written.keys()) for name, each in written.items()}


def write_flavors(file: Path, *flavors: Flavor) -> None:
    """Create the file. An existing one stays as it is, since a person may have changed it."""
    if not file.exists():
        file.write_text("\n".join(map(_as_toml, flavors)))


def classes_of_nodes(flavor: Flavor) -> tuple[str, ...]:
    """The bare-metal classes that the flavor requests. Empty if it also requests VCPU or the like: then it is for
    hypervisors, and its custom classes are devices there.
    """
    amounts = {
        "VCPU": str(flavor.vcpus),
        "MEMORY_MB": str(flavor.ram_mb),
        "DISK_GB": str(flavor.root_gb + flavor.ephemeral_gb),
        **{
            key.removeprefix(RESOURCES): value
            for key, value in flavor.extra_specs.items()
            if key.startswith(RESOURCES) and not value.startswith("preferred")
        },
    }
    asked = [name for name, amount in amounts.items() if amount != "0"]
    return tuple(sorted(asked)) if all(name.startswith(CUSTOM) for name in asked) else ()


def _flavor(file: Path, name: str, written: object, names: Collection[str]) -> _Written:
    if not isinstance(written, dict):
        raise BadFlavors(f"{file}: {name} is {written!r}, must be a table")
    fields = {*Flavor.__struct_fields__, ALTERNATIVES}
    if unknown := sorted(written.keys() - fields | written.keys() & {"name"}):
        known = ", ".join(field for field in (*Flavor.__struct_fields__, ALTERNATIVES) if field != "name")
        raise BadFlavors(f"{file}: {name}.{unknown[0]}: there is no such field; known are {known}")
    values = {field: value for field, value in written.items() if field != ALTERNATIVES}
    try:
        flavor = msgspec.convert({**values, "name": name}, Flavor)
        alternatives = msgspec.convert(written.get(ALTERNATIVES, ()), tuple[str, ...])
    except msgspec.ValidationError as wrong:
        raise BadFlavors(f"{file}: {name}: {wrong}") from None
    for number, other in enumerate(alternatives):
        if other not in names:
            known = ", ".join(names)
            raise BadFlavors(
                f"{file}: {name}.{ALTERNATIVES}[{number}] is {other!r}, which the file does not have; it has {known}"
            )
    return _Written(flavor, alternatives)


def _as_toml(flavor: Flavor) -> str:
    sizes = ("vcpus", "ram_mb", "root_gb", "ephemeral_gb", "swap_mb")
    lines = [f"[{flavor.name}]", *(f"{size} = {value}" for size in sizes if (value := getattr(flavor, size)))]
    lines += ["", f"[{flavor.name}.extra_specs]"]
    lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in flavor.extra_specs.items()]
    return "\n".join(lines) + "\n"
