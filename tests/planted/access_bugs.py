"""Planted bugs in TODO access."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
