"""The repository: its top has the rooms and what every project has; a public class name stands for one thing in all rooms, so that a reader
who knows it from one room is not misled in another; all code of the rooms is used by them; and `make demo` installs only what runs.
"""

import ast
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from vulture import Vulture

from moor.commands import others

ROOT = Path(__file__).parent.parent.parent
ROOMS = (
    "kit",
    "bus",
    "engine",
    "placement_worker",
    "scheduler_worker",
    "cell_conductor",
    "compute_sim",
    "ironic_sync",
    "keeper",
    "nova_bridge",
    "moor",
    "laboratory",
)
# Names that two classes may share, and why.
SHARED = {
    "Change": "an order of an instance's history on the bus; and a setting that a reload finds changed",
    "NotFound": "an exchange or queue that the broker does not have; and what the public client raises for an instance or a host",
    "NotAllowed": "placement's verdict on a write of another's; and what the public client raises if the broker refuses its user",
}


def test_a_public_class_name_stands_for_one_thing() -> None:
    homes = _homes_of_classes()
    assert len(homes) > 1_000, "the walk does not find the classes"

    shared = {name: places for name, places in homes.items() if len(places) > 1}
    news = {name: places for name, places in shared.items() if name not in SHARED}

    assert not news, f"give each class a name that says what it is in its room: {news}"
    assert set(SHARED) <= set(shared), "these names have one class now; take them out of SHARED"


def _homes_of_classes() -> Mapping[str, list[str]]:
    """The modules of each public class at the top level of a module."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for statement in ast.parse(path.read_text()).body:
                if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
                    homes[statement.name].append(str(path.relative_to(ROOT)))
    return homes


OTHER_FOLDERS = ("tests", "tools", "deploy", "docs")
TOP_FILES = {
    "pyproject.toml",
    "README.md",
    "RELEASES",
    "CHANGELOG.md",
    "Makefile",
    "LICENSE",
    ".ci",
    ".gitignore",
}


def test_nothing_else_stands_at_the_top() -> None:
    # What is committed, and what would be: not what .gitignore names.
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    there = {each.partition("/")[0] for each in listed if (ROOT / each).exists()}

    assert there == {*ROOMS, *OTHER_FOLDERS} | TOP_FILES


KINDS = ("function", "method", "property", "class")
# Click calls the functions of commands, and SQLAlchemy those that listen.
CALLED_BY_DECORATORS = ["@*.verb*", "@*.without_verb*", "@*listens_for*"]
# Code that nothing in the rooms names, and what uses it.
USED_ELSEWHERE = {
    "bus/memory/virtual_host.py": ("delete_queue",),  # tests, as an operator does on a real broker
    "kit/health_server.py": ("collect",),  # prometheus_client
    "bus/workers/connections.py": ("watched_readings",),  # kit/health_server.py, by its name as a text
    "bus/workers/worker.py": ("watched_readings",),  # likewise
    "kit/http_server.py": ("capture_signals",),  # uvicorn
    "kit/sql/statements.py": (
        "load_dialect_impl",
        "process_bind_param",
        "process_result_value",
    ),  # SQLAlchemy
    "laboratory/ironic/notifications.py": ("unsent",),  # a benchmark
    "laboratory/ironic/simulated.py": ("come_back", "go_away"),  # tests, as faults
    "moor/commands.py": ("format_commands", "get_command", "list_commands"),  # Click
    "moor/flags.py": ("format_commands", "get_metavar", "list_commands"),  # Click
    "moor/overview/top_command.py": (  # Textual
        *(
            "action_keys",
            "action_search",
            "action_state",
            "compose",
            "compose",
            "compose",
            "on_data_table_row_selected",
            "on_input_submitted",
            "on_mount",
        ),
        *("on_tabbed_content_tab_activated", "on_unmount"),
    ),
    "placement_worker/store_sql/log.py": ("get_col_spec",),  # SQLAlchemy
    "placement_worker/tables.py": ("get_col_spec",),  # SQLAlchemy
    "scheduler_worker/overview.py": ("watched_readings",),  # likewise
    "laboratory/plugin_check.py": ("breaches",),  # whoever writes a filter or a weigher
}


def test_all_code_of_the_rooms_is_used() -> None:
    found = Vulture(ignore_decorators=CALLED_BY_DECORATORS)
    # A folder's stubs are not read by themselves.
    stubs = [stub for room in ROOMS for stub in (ROOT / room).rglob("*.pyi")]
    found.scavenge([*(ROOT / room for room in ROOMS), *stubs], exclude=["*/migrations/*"])

    named = {f"{module}.{name}" for _, module, name, _ in others().values()} | {
        value.replace(":", ".")
        for points in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"].values()
        for value in points.values()
    }
    unused: dict[str, list[str]] = {}
    for each in found.get_unused_code(min_confidence=60):
        module = ".".join(Path(each.filename).relative_to(ROOT).with_suffix("").parts)
        if each.typ in KINDS and f"{module}.{each.name}" not in named:
            unused.setdefault(str(Path(each.filename).relative_to(ROOT)), []).append(each.name)

    assert {file: tuple(sorted(names)) for file, names in unused.items()} == USED_ELSEWHERE


def steps_of(target: str) -> list[str]:
    told = subprocess.run(["make", "-n", "-B", target], cwd=ROOT, capture_output=True, text=True, check=True)
    return told.stdout.splitlines()


def test_the_demo_needs_no_developers_tools() -> None:
    steps = steps_of("demo")
    assert "sh .ci/venv.sh" in steps
    assert steps[-1] == ".venv/bin/moor demo"
    assert not any("dev" in step for step in steps)


@pytest.mark.parametrize("target", ["lint", "types", "layers"])
def test_checks_install_the_developers_tools_and_after_them_the_demo_installs_nothing(target: str) -> None:
    assert {"sh .ci/venv.sh dev", "touch .venv/.runs .venv/.installed"} <= {*steps_of(target)}
