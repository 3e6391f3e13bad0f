"""Stores the nodes of a simulated Ironic in a file, so that they survive a kill of its process.

Each change is one line: the uuid, and the node, or null if it was deleted. A line is passed to the kernel before the change
is announced. So `kill -9` loses no change. Only the last line can be cut off, and is then ignored.
"""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from bus.unreadable import NOT_JSON
from compute_sim.laboratory.ironic.core.node import SimulatedNode
from compute_sim.laboratory.ironic.simulated import NodeChange

# The file is written again when it has more lines than this per node, and in total.
LINES_PER_NODE_MAX = 8
LINES_LEAST = 1000


class NodeFile:
    """The file in which a simulated Ironic keeps its nodes. Only one process may use it at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # The last change of each node that is not deleted, in the order in which they were first stored.
        self._last: dict[str, NodeChange] = {}
        for line in _read(path):
            self._take(line)
        self._lines = 0
        self._descriptor = -1
        self._begin()

    def load(self) -> tuple[SimulatedNode, ...]:
        return tuple(each.node for each in self._last.values() if each.node is not None)

    def keep(self, change: NodeChange) -> None:
        self._append(_text(change))
        self._take(change)
        self._lines += 1
        if self._lines > max(LINES_LEAST, LINES_PER_NODE_MAX * len(self._last)):
            self._begin()

    def close(self) -> None:
        os.close(self._descriptor)

    def _begin(self) -> None:
        """Replace the file by a new one, with one line for each node."""
        new = self._path.with_suffix(".new")
        # Nodes have the config drives of their instances.
        new.touch(mode=0o600)
        new.write_bytes(b"".join(map(_text, self._last.values())))
        new.replace(self._path)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._lines = len(self._last)

    def _append(self, line: bytes) -> None:
        """Write the whole line or, on a full disk, nothing: the rest of a line would make the whole file unreadable."""
        size = os.fstat(self._descriptor).st_size
        with suppress(OSError):
            if os.write(self._descriptor, line) == len(line):
                return
        os.ftruncate(self._descriptor, size)
        raise OSError(f"{self._path} cannot be written: is the disk full?")

    def _take(self, change: NodeChange) -> None:
        if change.node is None:
            self._last.pop(change.uuid, None)
        else:
            self._last[change.uuid] = change


def _read(path: Path) -> list[NodeChange]:
    lines: list[NodeChange] = []
    decoder = msgspec.json.Decoder(NodeChange)
    with suppress(FileNotFoundError):
        for text in path.read_bytes().split(b"\n")[:-1]:
            try:
                lines.append(decoder.decode(text))
            except NOT_JSON as problem:
                raise ValueError(f"{path} is not the file of a simulated Ironic's nodes: {problem}") from None
    return lines


def _text(change: NodeChange) -> bytes:
    return msgspec.json.encode(change) + b"\n"
