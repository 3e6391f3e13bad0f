"""For every test: hypothesis uses fixed seeds and no time limits; the longest files start first; what only `make proof` runs is marked.

With several brokers each test process has one of its own. No test finds the cloud of the person who runs it: its variables, its state,
its settings, or the ports at which a `moor up` serves. A CI, where nobody else needs them, takes these ports: a test that uses one fails.
"""

import gc
import os
import socket
import tempfile
import tomllib
from collections.abc import Generator
from contextlib import suppress
from importlib.metadata import distribution
from pathlib import Path

import pytest
from hypothesis import settings

from tests.judge.watching import WATCHED, notes
from tests.marks import hits
from tests.planting import PLANTED, plant_as_asked
from tests.servers.own_broker import brokers_in, take_broker
from tests.stages import has_none_of, is_for_proof, of_other_commits, second_on_servers, tree_of_git

TAKES_PORTS = "MOOR_TEST_TAKES_PORTS"
USUAL_PORTS = (6385, 8780, 8781)
NOWHERE = f"{tempfile.gettempdir()}/no-home-of-tests"
for name in [*os.environ]:
    if name.startswith("MOOR_") and not name.startswith(("MOOR_TEST_", "MOOR_UP_KILLS", "MOOR_LOG_LEVEL")):
        del os.environ[name]
os.environ |= {"XDG_STATE_HOME": NOWHERE, "XDG_CONFIG_HOME": NOWHERE}
_taken: list[socket.socket] = []
settings.register_profile("moorage", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("proof", settings.get_profile("moorage"), max_examples=120)
settings.load_profile("moorage")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--planted", metavar="NAME", help="run with this planted bug (tests/planted)")


def pytest_configure(config: pytest.Config) -> None:
    """A planted bug is in place before any test is imported.

    An environment that was made before an entry point was written does not know it, and tests would fail far from the reason.
    """
    if TAKES_PORTS in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        for port in USUAL_PORTS:
            with suppress(OSError):
                _taken.append(socket.create_server(("127.0.0.1", port)))
    if name := config.getoption("--planted"):
        os.environ[PLANTED] = name
    plant_as_asked()
    written = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    groups = {"console_scripts": written["scripts"], **written["entry-points"]}
    wanted = {(group, *point) for group, points in groups.items() for point in points.items()}
    if wanted != {(each.group, each.name, each.value) for each in distribution("moorage").entry_points}:
        pytest.exit(
            "the entry points in pyproject.toml are not installed: run `sh .ci/venv.sh dev`", returncode=2
        )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    path = collection_path.relative_to(Path(__file__).parent).as_posix()
    return True if has_none_of(path, config.getoption("markexpr")) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before pytest selects by markers. Simulations compute for minutes, while other tests mostly wait."""
    items.sort(key=lambda item: "simulation" not in item.path.parts)
    for item in items:
        if is_for_proof(item.nodeid):
            item.add_marker(pytest.mark.proof)
    for item in [*second_on_servers(items), *of_other_commits(items, tree_of_git())]:
        item.add_marker(pytest.mark.proof)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that is there to go down a rare path gets there."""
    with hits(*[text for mark in item.iter_markers("hits") for text in mark.args]):
        return (yield)


def pytest_runtest_logstart() -> None:
    notes.next_test()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """For those who ask which tests run a place of the product: how long each takes."""
    if report.when == "call" and (folder := os.environ.get(WATCHED)):
        with (Path(folder) / f"took-{os.getpid()}").open("a") as took:
            took.write(f"{report.nodeid}\t{report.duration:.2f}\n")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports leave no garbage, and the collector would look for some again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Freeze all objects of imports and collection, so that the garbage collector does not visit them again; and let it
    run less often than every 700 objects. Both together were a seventh of the tests' CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 100)


def pytest_xdist_auto_num_workers() -> int:
    """The meaning of `--numprocesses auto` here."""
    return brokers_in(os.environ)


if process := os.environ.get("PYTEST_XDIST_WORKER"):
    take_broker(os.environ, process)
