"""Planted bugs in TODO http_api."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
