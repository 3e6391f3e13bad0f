"""Planted bugs in TODO ironic_http."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
