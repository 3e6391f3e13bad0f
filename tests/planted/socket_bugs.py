"""Planted bugs in TODO socket."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
