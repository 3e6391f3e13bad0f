"""Planted bugs in TODO scheduler_store."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
