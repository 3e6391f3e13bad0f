"""Planted bugs in TODO kit."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
