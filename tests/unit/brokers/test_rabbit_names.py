"""Which names of the AMQP libraries the product uses. Each is one that they document or export, but for those of `undocumented.py`."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LIBRARIES = ("aio_pika", "aiormq", "pamqp")
ROOMS = (
    "bus",
    "cell_conductor",
    "compute_sim",
    "engine",
    "ironic_sync",
    "kit",
    "laboratory",
    "moor",
    "nova_bridge",
)
UNDOCUMENTED = ROOT / "bus" / "rabbit" / "undocumented.py"
NAMES = {
    "aio_pika.Connection",
    "aio_pika.abc.ConnectionParameter",
    "aio_pika.connection.make_url",
    "aiormq.Channel",
    "aiormq.Connection",
    "aiormq.TransportFactory",
    "aiormq.abc.DeliveredMessage",
    "aiormq.exceptions",
    "pamqp.base.Frame",
    "pamqp.commands",
    "pamqp.commands.Basic",
}


def used(tree: ast.Module) -> Iterator[str]:
    """What is imported of the libraries, and what is read of those that are imported whole: `aio_pika.Connection`."""
    for each in ast.walk(tree):
        if isinstance(each, ast.ImportFrom) and (each.module or "").partition(".")[0] in LIBRARIES:
            yield from (f"{each.module}.{name.name}" for name in each.names)
        elif (
            isinstance(each, ast.Attribute)
            and isinstance(each.value, ast.Name)
            and each.value.id in LIBRARIES
        ):
            yield f"{each.value.id}.{each.attr}"


def test_every_name_of_the_libraries_that_is_used_is_listed_and_every_listed_one_is_used() -> None:
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py") if file != UNDOCUMENTED]

    assert {name for file in files for name in used(ast.parse(file.read_text()))} == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_name_is_one_that_its_library_shows(name: str) -> None:
    """It has no underscore, and the module that it is taken of does not only import it for itself."""
    module, _, last = name.rpartition(".")
    owner = import_module(module)
    value = getattr(owner, last)

    assert "._" not in name
    assert last in getattr(owner, "__all__", ()) or getattr(value, "__module__", module).startswith(module)


def test_nothing_private_of_another_object_is_read() -> None:
    """mypy knows whether an object of these libraries has what is read of it."""
    read = {
        ast.unparse(each)
        for file in (ROOT / "bus" / "rabbit").glob("*.py")
        for each in ast.walk(ast.parse(file.read_text()))
        if isinstance(each, ast.Attribute) and each.attr.startswith("_") and not each.attr.startswith("__")
    }

    assert all(each.startswith("self._") for each in read), read
