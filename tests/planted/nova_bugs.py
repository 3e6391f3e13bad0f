"""Planted bugs in TODO nova."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
