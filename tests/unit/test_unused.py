"""Each function, method and class of the rooms is used by the rooms. What only tests use is code that nobody needs."""

import tomllib
from pathlib import Path

from vulture import Vulture

from moor.commands import others
from tests.unit.test_class_names import ROOMS, ROOT

KINDS = ("function", "method", "property", "class")
# Click calls the functions of commands, and SQLAlchemy those that listen.
CALLED_BY_DECORATORS = ["@*.verb*", "@*.without_verb*", "@*listens_for*"]
# Code that nothing in the rooms names, and what uses it.
USED_ELSEWHERE = {
    "bus/memory/virtual_host.py": ("delete_queue",),  # tests, as an operator does on a real broker
    "bus/workers/health_server.py": ("collect",),  # prometheus_client
    "bus/workers/station.py": ("watched_readings",),  # bus/workers/health_server.py, by its name as a text
    "bus/workers/worker.py": ("watched_readings",),  # likewise
    "kit/http_server.py": ("capture_signals",),  # uvicorn
    "kit/sql/statements.py": (
        "load_dialect_impl",
        "process_bind_param",
        "process_result_value",
    ),  # SQLAlchemy
    "laboratory/ironic/notifications.py": ("unsent",),  # a benchmark
    "laboratory/ironic/simulated.py": ("come_back", "go_away"),  # tests, as faults
    "moor/commands.py": ("format_commands", "get_command", "list_commands", "shell_complete"),  # Click
    "moor/flags.py": ("format_commands", "get_metavar", "list_commands", "shell_complete"),  # Click
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
    found.scavenge([ROOT / room for room in ROOMS], exclude=["*/migrations/*"])

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
