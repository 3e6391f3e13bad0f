"""The interface to the store of attempts; store_memory.py and store_sql.py implement it.

A simulator may forget attempts: core/attempts.py says how it answers about unknown ones. But hosts that outlive their
process, as in `moor up`, must keep what is on them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from bus.message import ProviderId
from bus.messages.build import InstanceId
from compute_sim.core.attempts import AttemptKey, AttemptRecord
from compute_sim.core.hosts import Load


class ComputeTransaction(Protocol):
    async def load(self, keys: Iterable[AttemptKey]) -> Mapping[AttemptKey, AttemptRecord]:
        """The known attempts with these keys."""

    async def due(self, at_s: float, limit: int) -> Sequence[AttemptRecord]:
        """Attempts whose answers are due by now, the earliest first. This process does not get them again until they
        are saved with another time or named by `due_again`. For its successor they are still due.
        """

    async def save(self, attempts: Iterable[AttemptRecord]) -> None: ...

    async def remember(self, attempts: Iterable[AttemptRecord]) -> None:
        """Keep the state of attempts that have ended, for this process only, until the broker confirms their answers.

        The table still has them as due. So if this process dies before that, its successor finds them due, and answers
        again.
        """

    def building(self, host: ProviderId) -> int:
        """How many attempts this host is building, or receiving in a move, without the changes of this transaction."""

    def waiting(self, host: ProviderId) -> Sequence[AttemptRecord]:
        """The attempts that wait for their turn on this host, as of before the transaction; the earliest first."""

    async def of_hosts(self, hosts: Collection[ProviderId]) -> Mapping[ProviderId, Sequence[AttemptRecord]]:
        """All attempts that these hosts still have, and those that are over but whose last answer is still due. Hosts without
        any are left out.
        """

    async def replace(self, pairs: Iterable[tuple[AttemptRecord, AttemptRecord]]) -> None:
        """Replace the first attempt of each pair by the second, if it has not changed since it was read.

        It has not changed if the store still has the same object.
        """


class ComputeStore(Protocol):
    def transaction(self) -> AbstractAsyncContextManager[ComputeTransaction]:
        """A transaction; no other runs at the same time."""

    def wake_with(self, sooner: Callable[[], None]) -> None:
        """Set a function that is called when something is due earlier than before."""

    async def next_due_s(self) -> float | None: ...

    def due_again(self, keys: Iterable[AttemptKey], at_s: float) -> None:
        """The answers to these attempts could not be sent: make them due again at this time, if they have not changed."""

    async def loads(self, hosts: Iterable[ProviderId]) -> Mapping[ProviderId, Load]:
        """The `Load` of each of these hosts: its instances, and the builds that run or wait there."""

    async def living(
        self, instances: Collection[InstanceId], after: InstanceId | None, limit: int
    ) -> Sequence[AttemptRecord]:
        """The attempts that hosts have: of these instances, or of all if none is named; only ids after `after`.

        They are in the order of their instances' ids, then of attempts: at most `limit`, and the others of the last instance.
        """

    async def take_changed(self) -> Sequence[ProviderId]:
        """The hosts whose load has changed since the last call."""

    async def forget(self, over_before_s: float) -> Sequence[AttemptKey]:
        """Delete attempts that were over before this time, and return their keys."""
