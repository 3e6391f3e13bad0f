"""What a compute asks of where it keeps its hosts' attempts; store_memory.py and store_sql.py implement it.

A simulator may forget: core/attempts.py says what is right to answer about an attempt that is not known. But hosts that
outlive their process, as those of `moor up` do, must have on them what they had.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from bus.message import ProviderId
from compute_sim.core.attempts import Attempted, AttemptKey
from compute_sim.core.hosts import Load


class ComputeTransaction(Protocol):
    async def load(self, keys: Iterable[AttemptKey]) -> Mapping[AttemptKey, Attempted]:
        """Those that are known."""

    async def due(self, at_s: float, limit: int) -> Sequence[Attempted]:
        """Attempts of which something is to be said by now, the earliest first. This process is not given them again
        until they are saved with another time or `due_again` names them; to the process after it they are due.
        """

    async def save(self, attempts: Iterable[Attempted]) -> None: ...

    async def remember(self, attempts: Iterable[Attempted]) -> None:
        """Attempts that have ended, and whose answer is still to be confirmed: this process knows and counts them as they
        are now. A process after this one finds them as they were saved before, and so due.
        """

    async def replace(self, pairs: Iterable[tuple[Attempted, Attempted]]) -> None:
        """Save the second of each pair where the first, as this store gave or took it, is still what is known."""


class ComputeStore(Protocol):
    def transaction(self) -> AbstractAsyncContextManager[ComputeTransaction]:
        """All or nothing, and nothing of others in between."""

    def wake_with(self, sooner: Callable[[], None]) -> None:
        """To be called when something is due sooner than what was due before."""

    async def next_due_s(self) -> float | None: ...

    def due_again(self, keys: Iterable[AttemptKey], at_s: float) -> None:
        """What became of these attempts could not be said: they are due again at this time, if they still are as they
        were.
        """

    async def loads(self, hosts: Iterable[ProviderId]) -> Mapping[ProviderId, Load]:
        """What these hosts have on them."""

    async def take_changed(self) -> Sequence[ProviderId]:
        """The hosts whose load has changed since this was last asked."""

    async def forget(self, over_before_s: float) -> Sequence[AttemptKey]:
        """Drop attempts that were over before this time; which these were."""
