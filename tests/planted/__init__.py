"""Planted bugs, in one table: they judge the tests. Each replaces one real function by one that does less, and its name says what
it breaks for users.

`pytest --planted NAME` runs any tests with the bug in place, also in the processes that they start. `make planted` says
which kind of test sees which bug (matrix.py). A bug whose function is gone is an error, and not a bug that is seen.
"""

import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

from tests.planted.replacing import ANY_CLOUD, BARE_METAL, BUGS, HARM_OF, WORLD_OF, PlantedBug, now_replaced

__all__ = ["BUGS", "HARM_OF", "OF_NODES", "OF_WORLDS", "SIMULATED", "PlantedBug", "plant"]

for _file in sorted(Path(__file__).parent.glob("*_bugs.py")):
    import_module(f"{__name__}.{_file.stem}")


def _of(world: str) -> dict[str, PlantedBug]:
    return {name: BUGS[name] for name, its in WORLD_OF.items() if its == world}


# Those that the simulation finds: all, those that only the seeds of one world can show, and those of bare metal.
SIMULATED = {name: BUGS[name] for name in WORLD_OF}
OF_NODES = _of(BARE_METAL)
OF_WORLDS = {
    world: _of(world) for world in dict.fromkeys(WORLD_OF.values()) if world not in (ANY_CLOUD, BARE_METAL)
}

# What is entered here ends with the process.
_for_good = ExitStack()


def plant(name: str) -> None:
    """Plant the bug for the rest of this process."""
    if name not in BUGS:
        raise LookupError(f"no planted bug {name!r}: there are {', '.join(sorted(BUGS))}")
    _for_good.enter_context(BUGS[name]())
    # Tests that were collected before have the real functions.
    for module in [each for each in sys.modules.values() if each.__name__.startswith("tests.")]:
        for real, replacement in now_replaced:
            for known in [each for each, value in vars(module).items() if value is real]:
                setattr(module, known, replacement)
