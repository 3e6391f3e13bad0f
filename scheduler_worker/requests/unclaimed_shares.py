"""Shares of hosts that a scheduler has chosen, and that an instance's cell is to claim: for moves, and for further alternates.

The scheduler does not see when the cell claims. So the picture counts each share as used for some seconds, and the next
choices leave it alone.
"""

import asyncio
from collections.abc import Sequence

from bus.messages.build import InstanceId
from bus.messages.placement import GroupMember
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.requests.companions import group_of

# How long the picture holds a choice for which no swap is seen.
HELD_S = 30.0


class UnclaimedShares:
    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        # By the instance and the attempt that will claim it.
        self._held: set[tuple[InstanceId, int]] = set()

    def hold(self, rows: Sequence[InstanceRow]) -> None:
        """Hold the first choice of each row in the picture for some seconds. They count under the attempt that the first
        swap will have, so the change of placement that names this attempt ends the hold earlier.
        """
        held = [(row.id, row.told.attempt + 1, row.choices[0].share) for row in rows]
        self._picture.hold(held)
        for row, (instance, attempt, share) in zip(rows, held, strict=True):
            if (group := group_of(row)) is not None:
                # Those that are ordered to leave next follow it there.
                member = GroupMember(group=group.id, consumer=instance, attempt=attempt, host=share.host)
                self._picture.groups.hold(member)
        keys = [(instance, attempt) for instance, attempt, _ in held]
        self._held.update(keys)
        asyncio.get_running_loop().call_later(HELD_S, self._drop, keys)

    def drop_all(self) -> None:
        """Hold none of them any more. This is called before a client is told that there is no host; placement still judges
        whether a swap has room.
        """
        self._picture.drop(self._held)
        self._held.clear()

    def _drop(self, keys: Sequence[tuple[InstanceId, int]]) -> None:
        self._picture.drop(keys)
        self._held.difference_update(keys)
