"""How many test functions name a module of the product that is no door: `python -m tools.doors [--list FOLDER]`.

Tests speak the language of users (messages and their values, the client, HTTP, commands) and a few doors of the rooms. A test names a
module if it, or a helper, fixture or constant of tests that it uses, mentions something imported from there.

Every module of the product is in the language, is a door, or is behind one: a new module fails here until somebody says by which door
its tests go in.
"""

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[1]
# More of the tests than these would have to be rewritten with the insides of the rooms.
SHARE_MAX = 0.1
WORKERS = ("placement_worker", "scheduler_worker", "cell_conductor", "compute_sim", "ironic_sync", "keeper")
ROOMS = ("kit", "bus", "engine", *WORKERS, "nova_bridge", "moor", "laboratory")
# The language of users: messages and their values, settings and the client. And the kit, a
# library that knows no message: its tests name its modules.
LANGUAGE = (
    *("bus.message", "bus.messages", "bus.codec", "bus.unreadable"),
    *("engine.flavors", "engine.goals", "engine.hosts", "engine.inventories", "engine.places"),
    *("engine.refusals", "kit", "moor.client"),
    *("bus.settings", "compute_sim.libvirt.settings", "nova_bridge.settings"),
    *("moor.settings", "moor.worker_settings", *(f"{room}.settings" for room in WORKERS)),
)


class Door(Struct, frozen=True):
    """Where values or messages go in and come out: the modules of the door and of its values. And what only goes through it: a package
    stands for all that is in it.
    """

    modules: tuple[str, ...]
    behind: tuple[str, ...] = ()


DOORS = {
    "commands, and the pages of the dashboard": Door(
        ("moor.commands", "moor.dashboard.service"),
        behind=(
            *("moor.__main__", "moor.bare_metal", "moor.broker", "moor.clouds", "moor.dashboard"),
            *("moor.flags", "moor.instances", "moor.options", "moor.overview", "moor.placement"),
            *("moor.resource_commands", "moor.resources", "moor.secret_files", "moor.settings_command"),
            *("moor.showing", "moor.tables", "moor.traces", "nova_bridge.importing", "nova_bridge.in_moor"),
            *("nova_bridge.shadow.report_command", "laboratory.demo", "laboratory.demo_screen"),
            *("laboratory.load", "laboratory.plugin_check", "laboratory.replay"),
            *("scheduler_worker.metrics", "scheduler_worker.overview", "keeper.metrics"),
        ),
    ),
    "place, plan and explain requests; find candidates": Door(
        (
            *("engine.choosing.choosing", "engine.choosing.plugins", "engine.choosing.plugin_settings"),
            *("engine.choosing.planning", "engine.choosing.explaining", "engine.picture", "engine.balancing"),
            *("engine.requests", "engine.candidates", "engine.guests"),
        ),
        behind=("engine.choosing",),
    ),
    "judge claims, writes by name and reports": Door(
        (
            *("placement_worker.core.claims", "placement_worker.core.ledger"),
            *("placement_worker.core.allocation_writes", "placement_worker.core.provider_writes"),
            *("placement_worker.core.reports", "placement_worker.core.forest"),
            "placement_worker.admin_writes",
        ),
        behind=("placement_worker.core",),
    ),
    "decide a cell, and what happens to an instance": Door(
        ("cell_conductor.core.decide", "cell_conductor.core.rows", "scheduler_worker.core.instances"),
        behind=("cell_conductor.core",),
    ),
    "the attempts of a host, and the guests on a machine": Door(
        (
            *("compute_sim.core.attempts", "compute_sim.core.hosts", "compute_sim.core.trees"),
            *("compute_sim.libvirt.core", "compute_sim.libvirt.driver", "compute_sim.libvirt.images"),
            *("compute_sim.libvirt.guest_folders", "compute_sim.libvirt.work"),
        ),
        behind=("compute_sim.core", "compute_sim.drivers", "compute_sim.guests", "compute_sim.libvirt"),
    ),
    "the next step of a node, and who takes it": Door(("ironic_sync.core", "ironic_sync.membership")),
    "what a keeper decides: campaigns, what budgets let begin, and what becomes of what is lost": Door(
        (
            *("keeper.core.campaigns", "keeper.core.fencing", "keeper.core.grants"),
            *("keeper.core.policies", "keeper.core.recovery", "keeper.core.balance"),
            "keeper.core.weeks",
        )
    ),
    "audit books": Door(("moor.client.books", "cell_conductor.core.books")),
    "a broker, its users, their rights, and its dead letters": Door(
        (
            *("bus.broker", "bus.memory", "bus.rabbit", "bus.unix_socket", "bus.topology"),
            *("bus.definitions", "bus.addresses", "bus.queues", "bus.workers.authority"),
            "bus.workers.dead_letters",
        )
    ),
    "a database, its roles, and the store of a room": Door(
        (
            *("kit.sql", "moor.clouds.db_command", "placement_worker.store"),
            *(f"{room}.store_sql" for room in WORKERS),
        ),
        behind=tuple(f"{room}.{part}" for room in WORKERS for part in ("tables", "migrations")),
    ),
    "the HTTP API, its callers and its policies": Door(
        ("placement_worker.api.service", "placement_worker.api.auth", "placement_worker.api.policy"),
        behind=("placement_worker.api",),
    ),
    "what Nova says, hears and is answered, and its placement": Door(
        (
            *("nova_bridge.envelope", "nova_bridge.request_spec", "nova_bridge.selection"),
            *("nova_bridge.cloud", "nova_bridge.cloud_reading", "nova_bridge.placement_api"),
            *("nova_bridge.placement_books", "nova_bridge.serving", "nova_bridge.shadow.notes"),
            *("nova_bridge.shadow.wiring", "nova_bridge.databases"),
        ),
        behind=(*("nova_bridge.deciding", "nova_bridge.demands", "nova_bridge.hosts", "nova_bridge.shadow"),),
    ),
    "a room's workers on a broker": Door(
        (
            *("bus.workers.connections", "bus.workers.handlers", "bus.workers.sending"),
            *("bus.workers.consuming", "bus.workers.worker"),
            *("ironic_sync.rest", "compute_sim.libvirt.running", "nova_bridge.wiring"),
            *(f"{room}.wiring" for room in WORKERS),
        ),
        behind=(
            *("bus.otel", "bus.workers"),
            *(f"{room}.__main__" for room in WORKERS),
            *(f"{room}.handlers" for room in WORKERS if room != "ironic_sync"),
            *("compute_sim.reporting", "ironic_sync.reporting"),
            *("placement_worker.candidates", "placement_worker.view", "cell_conductor.hosts"),
            *("scheduler_worker.aggregates", "scheduler_worker.applications", "scheduler_worker.cells"),
            *("scheduler_worker.claiming", "scheduler_worker.core", "scheduler_worker.forgetting"),
            *("scheduler_worker.groups", "scheduler_worker.host_orders", "scheduler_worker.hosts"),
            "scheduler_worker.outbox",
            *("scheduler_worker.questions", "scheduler_worker.replica", "scheduler_worker.requests"),
            *("scheduler_worker.waiting", "ironic_sync.applying", "ironic_sync.deploying"),
            *("ironic_sync.events", "ironic_sync.sweeping"),
            *("keeper.asking", "keeper.granting", "keeper.keeping", "keeper.hooks"),
            *("keeper.policies", "keeper.recovering", "keeper.balancing", "keeper.beginning"),
            "keeper.fences",
        ),
    ),
    "a cloud for trials: its hosts, nodes and servers": Door(
        (
            *("moor.clouds.cloud", "moor.clouds.temporary_cloud", "laboratory.at_rest"),
            *("laboratory.computes", "laboratory.ironic", "laboratory.private_servers"),
            *("laboratory.check", "laboratory.demo_guests", "laboratory.private_libvirtd"),
        )
    ),
}
ALLOWED = (*LANGUAGE, *(each for door in DOORS.values() for each in door.modules))
BEHIND = tuple(each for door in DOORS.values() for each in door.behind)
Uses = frozenset[str]
Place = tuple[str, str]


class Module(Struct, frozen=True):
    """A file of tests: what its names are imported from, and the definitions at its top."""

    imports: dict[str, str]
    defined: dict[str, ast.AST]


@cache
def module(name: str) -> Module | None:
    path = ROOT / name.replace(".", "/")
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    return _read(file) if file.exists() else None


def _read(file: Path) -> Module:
    imports: dict[str, str] = {}
    defined: dict[str, ast.AST] = {}
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                imports |= {
                    each.asname or each.name.partition(".")[0]: (each.asname and each.name)
                    or each.name.partition(".")[0]
                    for each in node.names
                }
            case ast.ImportFrom(module=str(source)):
                imports |= {each.asname or each.name: f"{source}.{each.name}" for each in node.names}
    for top in tree.body:
        match top:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                defined[name] = top
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                defined[name] = top
    return Module(imports, defined)


def uses(name: str, definition: str) -> Uses:
    """What this definition of a file of tests mentions of the product, itself or by others."""
    found: set[str] = set()
    waiting, seen = [(name, definition)], {(name, definition)}
    while waiting:
        mentioned, others = _mentions(*waiting.pop())
        found |= mentioned
        waiting += [each for each in others if each not in seen]
        seen |= others
    return frozenset(found)


@cache
def _mentions(name: str, definition: str) -> tuple[Uses, frozenset[Place]]:
    """What this definition itself mentions of the product, and the definitions of tests that it uses."""
    here = module(name)
    mentioned: set[str] = set()
    others: set[Place] = set()
    if here is not None and definition in here.defined:
        for used in _names_in(here.defined[definition]):
            head, _, rest = used.partition(".")
            if head in here.imports:
                target = f"{here.imports[head]}.{rest}".rstrip(".")
                if target.partition(".")[0] in ROOMS:
                    mentioned.add(target)
                elif (found := _definition_of(target)) is not None:
                    others.add(found)
            elif head in here.defined and head != definition:
                others.add((name, head))
            elif (fixture := _conftest_with(name, head)) is not None:
                others.add((fixture, head))
    return frozenset(mentioned), frozenset(others)


def _definition_of(target: str) -> Place | None:
    """Where in the tests this is defined: the file, and the name in it."""
    parts = target.split(".")
    for end in range(len(parts) - 1, 0, -1):
        if parts[0] == "tests" and module(".".join(parts[:end])) is not None:
            return ".".join(parts[:end]), parts[end]
    return None


def _names_in(definition: ast.AST) -> Iterator[str]:
    for node in ast.walk(definition):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                yield f"{owner}.{name}"
            case ast.Name(id=name) | ast.arg(arg=name):
                yield name


def _conftest_with(name: str, fixture: str) -> str | None:
    """The conftest.py above this file that has this fixture."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        above = ".".join((*parts[:end], "conftest"))
        if (found := module(above)) is not None and fixture in found.defined:
            return above
    return None


def is_internal(target: str) -> bool:
    return not _is_in(ALLOWED, target)


def _is_in(modules: tuple[str, ...], target: str) -> bool:
    return any(target == each or target.startswith(f"{each}.") for each in modules)


def misplaced() -> Iterator[str]:
    """The modules of the product that have no door, and the modules of this list that the product does not have."""
    files = [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
    there = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files}
    for each in sorted(there):
        if not each.endswith(".__init__") and not _is_in((*ALLOWED, *BEHIND), each):
            yield f"{each} has no door in {Path(__file__).name}"
    for each in (*ALLOWED, *BEHIND):
        if not any(_is_in((each,), other) for other in there):
            yield f"{each} in {Path(__file__).name} is no module"


def main(listed: str | None) -> None:
    if wrong := [*misplaced()]:
        raise SystemExit("\n".join(wrong))
    counts: Counter[str] = Counter()
    internal: Counter[str] = Counter()
    named: Counter[str] = Counter()
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        folder = (
            "/".join(file.relative_to(ROOT).parts[1:3])
            if len(file.relative_to(ROOT).parts) > 3
            else file.parent.name
        )
        for test in module(name).defined:  # type: ignore[union-attr]
            if not test.startswith("test_"):
                continue
            counts[folder] += 1
            inside = sorted({each for each in uses(name, test) if is_internal(each)})
            if inside:
                internal[folder] += 1
                named.update({each.rpartition(".")[0] for each in inside})
                if listed is not None and folder.startswith(listed):
                    print(f"{name}.{test}: {', '.join(inside)}")
    for folder, count in counts.most_common():
        print(f"{folder:24} {internal[folder]:5} of {count:5}")
    total, all_internal = counts.total(), internal.total()
    print(
        f"{all_internal} of {total} test functions ({100 * all_internal / total:.0f} %) name an internal module"
    )
    print("most named: " + ", ".join(f"{each} {count}" for each, count in named.most_common(12)))
    if all_internal > SHARE_MAX * total:
        raise SystemExit(f"more than {SHARE_MAX:.0%}: a helper that many tests import may name such a module")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.doors", description=__doc__)
    parser.add_argument(
        "--list", metavar="FOLDER", help="also list the tests below this folder, and what they name"
    )
    main(parser.parse_args().list)
