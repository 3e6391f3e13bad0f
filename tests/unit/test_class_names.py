"""A public class name stands for one thing in all rooms, so that a reader who knows it from one room is not misled in another."""

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

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
