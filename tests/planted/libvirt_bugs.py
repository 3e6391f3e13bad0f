"""Planted bugs in TODO libvirt."""

from tests.planted.replacing import PlantedBug

BUGS: dict[str, PlantedBug] = {}
