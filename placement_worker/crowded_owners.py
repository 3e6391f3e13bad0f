"""Warns of owners whose releases leave no rows any more, since they came before their claims too often (core/ownership.py)."""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

from placement_worker.core.ownership import NO_CELL, Owner

log = logging.getLogger(__name__)

TOLD_AGAIN = timedelta(minutes=1)


class CrowdedOwners:
    def __init__(self, tombstones_max: int) -> None:
        self._max = tombstones_max
        self._told_at: dict[Owner, datetime] = {}

    def tell(self, room: Mapping[Owner, int], now: datetime) -> None:
        """Log a warning for each owner without room, but not more than once a minute."""
        self._told_at = {owner: at for owner, at in self._told_at.items() if now - at < TOLD_AGAIN}
        for owner, left in room.items():
            if not left and owner not in self._told_at:
                self._told_at[owner] = now
                cell, project = owner
                log.warning(
                    "%s has left %d rows by releases that came before their claims, as many as placement.tombstones_max allows: "
                    "further ones leave none, and a claim that comes after its release is granted until `moor audit` finds it",
                    f"the API level for project {project}" if cell == NO_CELL else f"cell {cell}",
                    self._max,
                )
