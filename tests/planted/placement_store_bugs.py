"""Planted bugs in TODO placement_store."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
