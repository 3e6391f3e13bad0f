"""Hosts that placement has had for a moment only, and that have told the registry nothing of themselves yet.

A compute that starts reports its trees to placement and its facts to schedulers at the same time. If placement is faster, a
request that waited for the start of the whole cloud would be told that no host fits.
"""

import asyncio

from bus.message import ProviderId
from scheduler_worker.core.picture.picture import Picture

# A host that has not told of itself after this time is not waited for: it may be a provider that only placement knows.
TOLD_WITHIN_S = 2.0
LOOK_S = 0.1


class Newcomers:
    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        # When each host that has told nothing was first missed.
        self._missed_at_s = dict[ProviderId, float]()

    async def until_told(self) -> bool:
        """Wait until each newcomer has told of itself, but not longer than `TOLD_WITHIN_S`. Returns whether it waited."""
        for look in range(int(TOLD_WITHIN_S / LOOK_S)):
            if not self._are_any():
                return look > 0
            await asyncio.sleep(LOOK_S)
        return True

    def _are_any(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        self._missed_at_s = {
            host: self._missed_at_s.get(host, now_s) for host in self._picture.unregistered()
        }
        return any(now_s < missed_s + TOLD_WITHIN_S for missed_s in self._missed_at_s.values())
