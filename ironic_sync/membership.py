"""A daemon's place in the ring: it holds a lease, takes nodes that have no live owner, and gives away what belongs to others.

There are two loops, so that a long takeover never delays a renewal. One joins and renews. The other reads the members and
moves nodes by compare-and-set. Only this second loop changes the set of owned nodes and calls the listeners.

    join      The daemon takes every node that still has its name from an earlier lease, under a new epoch.
    lapse     The lease was lost: listeners hear that all nodes are lost, and the daemon joins again.
    drain     The daemon gives all nodes away, and takes none.
    stop      The same at once, and its member row is deleted, so that the others need not wait for the lease to expire.

By its own monotonic clock, the daemon counts a lease from the moment before it asked for it. The database counts from a later
moment. So the daemon stops acting before the others may take its nodes.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from engine.inventories import ProviderId
from ironic_sync.core.ring import Member, NodeHandover, Owned, Ring, gives, names_alive, takes, takes_anew
from ironic_sync.core.rows import NodeRow
from ironic_sync.settings import DaemonRules
from ironic_sync.store_sql import IronicStore, RingView, check_name, pages_of
from kit.clock import SECOND_US
from kit.errors import Operational, Unavailable
from kit.parts import PartGroup, Pauses, Periodic

T = TypeVar("T")

log = logging.getLogger(__name__)

# A lease that could not be renewed is asked for again soon: it does not last.
PAUSES = Pauses(first_s=0.1, max_s=1.0)
# The host registry may have been told of so many epochs that placement was not: each takeover that broke off is one.
EPOCHS_UNTOLD_MAX = 100
# How often a daemon that stops tries to give away rows that others had locked.
LEAVING_TRIES_MAX = 3


class MembershipListener(Protocol):
    """Is told which nodes the daemon has gained or lost, after the commit. It must not wait."""

    def gained(self, nodes: Sequence[Owned]) -> None:
        """These nodes are this daemon's now, or again under another epoch: each must be read before it is worked on."""

    def lost(self, nodes: Sequence[ProviderId]) -> None:
        """These nodes are no longer this daemon's."""


class Membership(PartGroup):
    """The daemon's place in the ring: its lease and its nodes. Each start of the process has another `incarnation`."""

    def __init__(
        self,
        store: IronicStore,
        name: str,
        incarnation: str,
        rules: DaemonRules,
        *,
        listeners: Iterable[MembershipListener] = (),
        clock_s: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        check_name(name)
        self.name = name
        self.incarnation = incarnation
        # As the last look found them.
        self.members: tuple[Member, ...] = ()
        self._store = store
        self._rules = rules
        self._listeners = list(listeners)
        self._clock_s = clock_s
        self._owned: dict[ProviderId, int] = {}
        # Nodes that others may own in this very moment: the answer to the transaction that gave them has not come.
        self._giving: set[ProviderId] = set()
        # Placement knows these epochs of nodes, which are later than ours.
        self._to_overtake: dict[ProviderId, int] = {}
        # Leases are numbered from 1; 0 is none. Until the first look under a lease is done, the daemon may not act: some
        # of what it owns may be of the lease before.
        self._leases = 0
        self._has_lease = False
        self._begun_under = 0
        self._looked_under = 0
        self._renewed_at_s = 0.0
        # Where the next page of unread nodes begins: there may be thousands after a takeover.
        self._unread_after: ProviderId | None = None
        # How many nodes could not be taken over at the last look.
        self._stuck = 0
        self._must_compare = True
        self._ring: tuple[str, ...] = ()
        self._compared_at_s = 0.0
        self._renewing = Periodic(
            "ring lease", self._hold_lease, rules.renew_s, is_needed=True, pauses=PAUSES, chance=chance
        )
        self._looking = Periodic(
            "ring", self._look, rules.look_s, is_needed=True, pauses=PAUSES, chance=chance
        )
        super().__init__(self._renewing, self._looking)

    def listen(self, listener: MembershipListener) -> None:
        """Tell this listener of all nodes that the daemon gains or loses from now on."""
        self._listeners.append(listener)

    # Questions of the daemon's other parts

    @property
    def owned(self) -> Mapping[ProviderId, int]:
        """The nodes of this daemon, each with its epoch."""
        return self._owned

    @property
    def is_draining(self) -> bool:
        return any(each.name == self.name and each.is_draining for each in self.members)

    def may_act(self) -> bool:
        """Does the daemon hold its lease? Ask before each step towards Ironic or placement, and again after each wait."""
        is_begun = self._has_lease and self._looked_under == self._leases
        return is_begun and self._lease_time_left_s() > 0

    def may_act_on(self, node: ProviderId) -> bool:
        return node in self._owned and node not in self._giving and self.may_act()

    def overtake(self, epochs: Mapping[ProviderId, int]) -> None:
        """Note that placement knows these epochs of nodes, which may be higher than this daemon's. The next time the
        daemon looks at its nodes, it raises the epochs of its own nodes above them.
        """
        self._to_overtake.update(epochs)
        self._looking.wake()

    def compare_soon(self) -> None:
        """Compare this daemon's rows with the nodes that it believes to own: rows were deleted."""
        self._must_compare = True
        self._looking.wake()

    # As a part

    async def run(self) -> None:
        await super().run()
        await self._leave()

    # The lease

    async def _hold_lease(self) -> None:
        asked_at_s = self._clock_s()
        if self._has_lease:
            if await self._in_time(self._store.renew(self.name, self.incarnation, self._rules.lease_s)):
                self._renewed_at_s = asked_at_s
                return
            log.warning("daemon %r lost its lease: it joins again, without its nodes", self.name)
            self._has_lease = False
            self._looking.wake()
            asked_at_s = self._clock_s()
        await self._in_time(self._store.join(self.name, self.incarnation, self._rules.lease_s))
        self._leases += 1
        self._has_lease, self._renewed_at_s = True, asked_at_s
        self._looking.wake()

    async def _in_time(self, asked: Awaitable[T]) -> T:
        """Wait for the database's answer about the lease, but at most `renew_wait_s`: a connection that is silent
        must not use up the lease.
        """
        try:
            async with asyncio.timeout(self._rules.renew_wait_s):
                return await asked
        except TimeoutError:
            log.debug("the database does not answer about the lease in time")
            wait_s = self._rules.renew_wait_s
            raise Unavailable(f"database: the ring's lease was not answered within {wait_s:g} s") from None

    def _lease_time_left_s(self) -> float:
        return self._renewed_at_s + self._rules.acting_s - self._clock_s()

    # The nodes

    async def _look(self) -> None:
        lease = self._leases
        if not self._has_lease:
            self._lost(tuple(self._owned))
            return
        view = await self._store.look(self.name, self._rules.page, self._unread_after)
        if not self._is_in(view):
            log.debug("the lease is over by the database's clock: the daemon joins again")
            self._renewing.wake()
            return
        self.members = view.members
        if lease != self._looked_under and not await self._takes_own_anew(lease):
            return
        await self._take_over(view)
        await self._raise_epochs()
        self._notice(view.unread)
        if self._is_to_compare():
            await self._compare()
        self._looked_under = lease

    def _is_in(self, view: RingView) -> bool:
        return any(
            each.name == self.name and each.incarnation == self.incarnation and each.is_alive
            for each in view.members
        )

    async def _takes_own_anew(self, lease: int) -> bool:
        """At the beginning of a lease, give a new epoch to every node that still has this daemon as its owner.
        Returns whether all of them got it; if not, the next look continues.
        """
        if self._begun_under != lease:
            self._lost(tuple(self._owned))
            self._begun_under, self._must_compare = lease, True
        owned = await self._store.owners((self.name,))
        moves = takes_anew([each for each in owned if self._is_news(each)], self.name)
        return await self._move(moves) == len(moves)

    async def _take_over(self, view: RingView) -> None:
        alive = names_alive(view.members)
        dead = [name for name in view.owner_names if name not in alive]
        if not dead or self.name not in Ring(view.members).names:
            return
        began_at_s = self._clock_s()
        owned = await self._store.owners(dead)
        # Read the members after the nodes. A daemon that has returned meanwhile takes its nodes under another epoch than the
        # one just read, so these moves then fail.
        moves = takes(owned, await self._store.members(), self.name)
        moved = await self._move(moves)
        stuck = 0 if moved else len(moves)
        # Rows that a daemon has locked which stands still are tried at each look, and told of once.
        if moved or stuck > self._stuck:
            log.info(
                "daemon %r took over %d of %d nodes without a live owner in %.2f s",
                self.name,
                moved,
                len(moves),
                self._clock_s() - began_at_s,
                extra={"owners": dead},
            )
        self._stuck = stuck

    async def _raise_epochs(self) -> None:
        """Raise the epochs that `overtake` was told of. Those rows were restored from a backup, so placement knows
        later epochs. The nodes are read again in the new ones.
        """
        told, self._to_overtake = self._to_overtake, {}
        epochs = {node: epoch for node, epoch in told.items() if node in self._owned}
        moves = [
            NodeHandover(node, self.name, own, self.name, above=epoch + EPOCHS_UNTOLD_MAX)
            for node, epoch in epochs.items()
            if (own := self._owned[node]) <= epoch
        ]
        moved = await self._move(moves)
        # The row of a node that did not move has another epoch than this daemon knows.
        self._must_compare = self._must_compare or moved < len(epochs)
        if moves:
            log.warning(
                "daemon %r raised the epochs of %d of %d nodes above those that placement knows: were its rows restored "
                "from a backup?",
                self.name,
                moved,
                len(moves),
            )

    def _notice(self, unread: Sequence[Owned]) -> None:
        """Count this page of unread nodes as this daemon's, and tell the listeners of those that are new to it.

        So the daemon learns which nodes other daemons gave it: such nodes are unread. If the page is full, the next
        look reads the page after it.
        """
        is_full = len(unread) == self._rules.page
        self._unread_after = unread[-1].id if is_full else None
        if is_full and any(map(self._is_news, unread)):
            # More of them may have been given.
            self._looking.wake()
        self._gained(unread)

    def _is_to_compare(self) -> bool:
        """Must this daemon compare its nodes with the ring now, since some may belong to another daemon?

        Yes if the ring's daemons have changed, if this daemon is giving its nodes away, or if the last
        comparison was not finished or is `balance_s` ago.
        """
        return (
            self._must_compare
            or self._ring != Ring(self.members).names
            or (self.is_draining and bool(self._owned) and bool(self._ring))
            or self._clock_s() - self._compared_at_s >= self._rules.balance_s
        )

    async def _compare(self) -> None:
        """Compare this daemon's rows with the nodes that it believes to own, and with the ring. Give away the nodes
        that belong to other daemons.
        """
        # Until it is done: whatever breaks it off.
        self._must_compare = True
        owned = await self._store.owners((self.name,))
        self._giving.clear()
        epochs = {each.id: each.epoch for each in owned}
        # A row may be behind what is known of it: it was pruned and made anew, or restored from a backup.
        theirs = [node for node, epoch in self._owned.items() if epochs.get(node, -1) < epoch]
        self._lost(sorted(theirs))
        self._gained(owned)
        moves = gives(owned, self.members, self.name)
        moved = await self._move(moves)
        self._must_compare = moved < len(moves)
        self._ring, self._compared_at_s = Ring(self.members).names, self._clock_s()

    async def _move(self, moves: Sequence[NodeHandover]) -> int:
        """Carry out these moves of nodes, in as many transactions as it takes. Returns how many nodes moved."""
        moved = 0
        for first in range(0, len(moves), self._rules.page):
            if self._lease_time_left_s() <= 0:
                break
            moved += await self._give(moves[first : first + self._rules.page])
        return moved

    async def _give(self, moves: Sequence[NodeHandover]) -> int:
        # Broken off, they stay in it until the rows are compared again.
        self._giving |= {each.id for each in moves if each.to != self.name}
        moved = await self._store.give(moves)
        self._giving -= {each.id for each in moves}
        self._gained([each for each in moved if each.owner == self.name])
        self._lost([each.id for each in moved if each.owner != self.name])
        return len(moved)

    def _gained(self, nodes: Sequence[Owned]) -> None:
        if fresh := [each for each in nodes if self._is_news(each)]:
            self._owned |= {each.id: each.epoch for each in fresh}
            for listener in self._listeners:
                listener.gained(fresh)

    def _is_news(self, node: Owned) -> bool:
        """Is this epoch of the node later than the known one? A list that was read may be older than later moves."""
        return self._owned.get(node.id, -1) < node.epoch

    def _lost(self, nodes: Sequence[ProviderId]) -> None:
        if gone := [each for each in nodes if self._owned.pop(each, None) is not None]:
            for listener in self._listeners:
                listener.lost(gone)

    # The end

    async def _leave(self) -> None:
        """Give all nodes away and delete this member's row. A node that could not be given away has no live owner
        then, so another daemon takes it over at its next look.
        """
        if not self._has_lease:
            return
        # From here on it acts no more, whatever becomes of the lease.
        self._has_lease = False
        try:
            await self._give_everything()
            await self._in_time(self._store.leave(self.name, self.incarnation))
        except Operational as problem:
            log.warning(
                "daemon %r stops without having left the ring: others take its nodes when its lease of %g s is over: %s",
                self.name,
                self._rules.lease_s,
                problem,
            )
        self._lost(tuple(self._owned))

    async def _give_everything(self) -> None:
        await self._store.set_draining(self.name, draining=True, incarnation=self.incarnation)
        self.members = await self._store.members()
        self._must_compare = True
        for _ in range(LEAVING_TRIES_MAX):
            if self._must_compare:
                await self._compare()


# Goes through all rows of this daemon's nodes at an interval, for work that no event starts or that other daemons left
# undone.
#
# It reports nodes again whose provider another program keeps, reports each node to the host registry again, and prunes
# the rows of nodes that Ironic deleted long ago.


Listener = Callable[[Sequence[NodeRow]], None]


class Review(Periodic):
    """The part that goes through the rows of this daemon's nodes. Its listeners are called with each page of rows,
    and must not wait.
    """

    def __init__(
        self,
        store: IronicStore,
        daemon: str,
        rules: DaemonRules,
        clock_us: Callable[[], int],
        *,
        listeners: Sequence[Listener] = (),
        forgotten: Callable[[], None] = lambda: None,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(
            "review all nodes",
            self._review,
            rules.sweep_s,
            rests_first=True,
            is_cut_short=True,
            chance=chance,
        )
        self._store = store
        self._daemon = daemon
        self._rules = rules
        self._clock_us = clock_us
        self._listeners = listeners
        # Called after rows were pruned.
        self._forgotten = forgotten

    async def _review(self) -> None:
        async for rows in pages_of(self._store, self._daemon, self._rules.page):
            for listener in self._listeners:
                listener(rows)
            await self._prune(rows)

    async def _prune(self, rows: Sequence[NodeRow]) -> None:
        before_us = self._clock_us() - round(self._rules.deleted_kept_s * SECOND_US)
        old = [row for row in rows if row.is_over and max(row.heard_at_us, row.read_at_us) < before_us]
        if not old:
            return
        async with self._store.transaction() as transaction:
            gone = await transaction.forget(old)
        self._forgotten()
        log.info("forgot %d nodes that were deleted more than %g s ago", gone, self._rules.deleted_kept_s)
