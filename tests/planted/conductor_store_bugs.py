"""Planted bugs in TODO conductor_store."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
