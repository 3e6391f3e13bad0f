"""Planted bugs in TODO import."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
