"""The nodes of a simulated Ironic in a file, and what is restored after its process was killed."""

import resource
from pathlib import Path

import pytest

from laboratory.ironic import NodeFile, SimulatedIronic, available_nodes
from laboratory.ironic.node import LINES_LEAST
from laboratory.ironic.work import AVAILABLE, CLEANING, POWER_ON
from tests.ironic_clients.nodes import delete
from tests.unit.ironic_sim.worlds import World

NODE = "node-00000"


class FileWorld(World):
    """A simulated Ironic with a file and a clock; it may be killed and started again."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.begin()

    def begin(self) -> None:
        self.file = NodeFile(self.path)
        nodes = self.file.load() or available_nodes(3)
        self.ironic = SimulatedIronic(nodes, lambda: self.at_s, self._take, keep=self.file.keep)
        self.ironic.resume_work()

    def killed(self) -> None:
        """Kill the process and start it again; the file stays as it is."""
        self.file.close()
        self.begin()


def test_nodes_are_as_they_were(tmp_path: Path) -> None:
    world = FileWorld(tmp_path / "nodes")
    world.ironic.set_maintenance(NODE, is_on=True, reason="disk")
    delete(world.ironic, "node-00001")
    before = dict(world.ironic.nodes)

    world.killed()

    assert world.ironic.nodes == before
    assert len(before) == 2


@pytest.mark.parametrize("after_s", [0.0, 1.5])
def test_work_that_was_under_way_goes_on(tmp_path: Path, after_s: float) -> None:
    world = FileWorld(tmp_path / "nodes")
    world.ironic.provision(NODE, "manage")
    world.ironic.provision(NODE, "provide")
    world.ironic.set_power("node-00002", POWER_ON)
    world.at_s += after_s

    world.killed()
    assert world.state(NODE) == CLEANING
    world.pass_s(2)

    assert world.state(NODE) == AVAILABLE
    node = world.node("node-00002")
    assert (node.power_state, node.target_power_state, node.reservation) == (POWER_ON, None, None)


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    world = FileWorld(path)
    world.ironic.set_maintenance(NODE, is_on=True)
    whole = dict(world.ironic.nodes)
    world.file.close()
    path.write_bytes(path.read_bytes() + b'["half of a li')

    world.begin()

    assert world.ironic.nodes == whole


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    world = FileWorld(tmp_path / "nodes")
    for number in range(2 * LINES_LEAST):
        world.ironic.set_maintenance(NODE, is_on=bool(number % 2), reason=str(number))

    assert len(world.path.read_bytes().splitlines()) <= LINES_LEAST
    before = dict(world.ironic.nodes)
    world.killed()
    assert world.ironic.nodes == before


def test_a_change_that_a_full_disk_cuts_off_leaves_nothing_in_the_file(tmp_path: Path) -> None:
    world = FileWorld(tmp_path / "nodes")
    _, most = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (world.path.stat().st_size + 100, most))
    try:
        with pytest.raises(OSError, match=r"nodes cannot be written"):
            world.ironic.set_maintenance(NODE, is_on=True, reason="a" * 1_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    world.ironic.set_maintenance("node-00001", is_on=True, reason="disk")

    world.killed()

    assert [node.maintenance_reason for node in world.ironic.nodes.values()] == [None, "disk", None]


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text("[1, 2]\n")

    with pytest.raises(ValueError, match="is not the file of a simulated Ironic's nodes"):
        NodeFile(path)
