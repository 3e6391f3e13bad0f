"""Planted bugs in TODO rabbit."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
