"""Planted bugs in TODO sql."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
