"""Planted bugs in TODO compute."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
