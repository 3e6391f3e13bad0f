"""The nodes of a simulated Ironic in a file, so that they are as they were after their process was killed.

Each change of a node is a line: its uuid, and the node, or null for one that is gone. A line is handed to the kernel before
the change is announced, so `kill -9` loses none; a line that was cut off is the last one, and does not count. Allocations
are not kept.
"""

import os
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from bus.unreadable import NOT_JSON
from compute_sim.ironic.core.node import Node

# With so many lines for each node, and not only a few, the file is written anew.
LINES_PER_NODE_MAX = 8
LINES_LEAST = 1000


class Line(Struct, frozen=True, array_like=True):
    uuid: str
    node: Node | None


class NodeFile:
    """`keep` is to be called for each change, by one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._nodes: dict[str, Node] = _read(path)
        self._lines = 0
        self._descriptor = -1
        self._begin()

    def load(self) -> tuple[Node, ...]:
        """In the order in which they were first kept."""
        return tuple(self._nodes.values())

    def keep(self, uuid: str, node: Node | None) -> None:
        if node is None:
            self._nodes.pop(uuid, None)
        else:
            self._nodes[uuid] = node
        os.write(self._descriptor, _line(uuid, node))
        self._lines += 1
        if self._lines > max(LINES_LEAST, LINES_PER_NODE_MAX * len(self._nodes)):
            self._begin()

    def close(self) -> None:
        os.close(self._descriptor)

    def _begin(self) -> None:
        """A new file with one line for each node takes the place of the old one."""
        new = self._path.with_suffix(".new")
        new.write_bytes(b"".join(_line(uuid, node) for uuid, node in self._nodes.items()))
        new.replace(self._path)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._lines = len(self._nodes)


def _read(path: Path) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    decoder = msgspec.json.Decoder(Line)
    with suppress(FileNotFoundError):
        for text in path.read_bytes().split(b"\n")[:-1]:
            try:
                line = decoder.decode(text)
            except NOT_JSON as problem:
                raise ValueError(f"{path} is not the file of a simulated Ironic's nodes: {problem}") from None
            if line.node is None:
                nodes.pop(line.uuid, None)
            else:
                nodes[line.uuid] = line.node
    return nodes


def _line(uuid: str, node: Node | None) -> bytes:
    return msgspec.json.encode(Line(uuid, node)) + b"\n"
