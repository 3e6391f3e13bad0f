"""Planted bugs in TODO client."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
