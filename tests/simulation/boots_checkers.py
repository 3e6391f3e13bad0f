"""Follow what boots are promised: room for what waits, whole requests, power, cells that are down, silent hosts, and feeds."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from bus.messages.build import AttemptFailed
from bus.settings import BusSettings
from cell_conductor.core.rows import Instance
from compute_sim.core.attempts import AttemptState
from engine.flavors import (
    InstanceId,
    RequestId,
    instance_id_of,
)
from engine.inventories import Choice, ConsumerId
from engine.picture.picture import Picture
from placement_worker.settings import FeedPace
from scheduler_worker.core.instances.rows import FIRST_ATTEMPT, PLACED, WAITING, InstanceRow
from tests.simulation.findings import Findings
from tests.simulation.host_history import HostHistories, short_id
from tests.simulation.plan import CELLS, Plan
from tests.simulation.real_instances import RealInstances
from tests.simulation.stored_books import InspectableStore
from tests.simulation.workers import BUS, SCHEDULER, SCHEDULER_PACE

# Longer than any pause of a scheduler that tries what waits, when nothing fails any more.
WOKEN_WITHIN_S = 5.0
# So long after the faults every scheduler knows all that waits, and no try of before has it pause.
KNOWN_AFTER_S = 12.0
HIGHEST_FIRST = "room goes to the highest priority first"


class _Waits(NamedTuple):
    host: str
    priority: int
    vcpus: int
    since_s: float


class WaitsChecker:
    def __init__(self, findings: Findings, hosts: HostHistories, plan: Plan) -> None:
        self._findings = findings
        self._hosts = hosts
        self._boots = {boot.id: boot for boot in plan.boots}
        # The way back of an offload is another request (movers.py).
        self._moves = {UUID(int=move.id.int ^ way): move for move in plan.moves for way in (0, 1) if move.to}
        self._fair_from_s = plan.faults_end_s + KNOWN_AFTER_S
        self._waiting: dict[InstanceId, _Waits] = {}

    def follow(self, row: InstanceRow) -> None:
        waits = self._waits(row)
        if waits is not None:
            self._waiting.setdefault(row.id, waits)
            return
        ended = self._waiting.pop(row.id, None)
        if ended is None:
            return
        if row.told.state in ("placed", "moving"):
            self._check_turn(row, ended)
        elif (move := row.told.move) is not None and move.failure.startswith("no valid host: it waited"):
            self._check_no_room(row, ended)

    def _waits(self, row: InstanceRow) -> _Waits | None:
        told = row.told
        boot = self._boots.get(told.request_id)
        if told.waiting is None or boot is None:
            return None
        now_s, priority = self._findings.now_s, told.waiting.priority
        if told.state == WAITING:
            return (
                _Waits(boot.host, priority, boot.vcpus, now_s) if boot.host and boot.demand is None else None
            )
        move = None if told.move is None else self._moves.get(told.move.request_id)
        return None if move is None else _Waits(move.to, priority, boot.vcpus, now_s)

    def _check_turn(self, row: InstanceRow, ended: _Waits) -> None:
        now_s = self._findings.now_s
        if now_s < self._fair_from_s:
            return
        for id_, other in self._waiting.items():
            is_before = other.host == ended.host and other.priority > ended.priority
            if is_before and other.vcpus <= ended.vcpus and other.since_s < now_s - WOKEN_WITHIN_S:
                self._findings.breaks(
                    HIGHEST_FIRST,
                    f"{short_id(row.id)} has room on {ended.host}, with priority {ended.priority}, and {short_id(id_)} waits for it "
                    f"with {other.priority} since {other.since_s:.1f} s",
                )

    def _check_no_room(self, row: InstanceRow, ended: _Waits) -> None:
        boot = self._boots[row.told.request_id]
        since_s = max(ended.since_s, self._findings.now_s - WOKEN_WITHIN_S)
        amounts = {"VCPU": boot.vcpus, "MEMORY_MB": boot.ram_mb, "DISK_GB": 1}
        fitting = self._hosts.fitting(amounts, frozenset(), (ended.host,), since_s, BUS.host_down_s)
        if fitting:
            self._findings.breaks(
                "never a wrong no",
                f"the move of {short_id(row.id)} has waited in vain, although {fitting} had room since {since_s:.1f} s",
            )


WHOLE = "all or nothing"
PROMISE = "all or none of a request is placed"


class WholeChecker:
    def __init__(self, findings: Findings, plan: Plan) -> None:
        self._findings = findings
        self._instances = {
            RequestId(boot.id): {instance_id_of(RequestId(boot.id), index) for index in range(boot.count)}
            for boot in plan.boots
            if boot.all_or_nothing
        }
        self._request_of = {id_: request for request, ids in self._instances.items() for id_ in ids}

    def claimed(self, granted: Collection[tuple[ConsumerId, int]]) -> None:
        """Take in the claims and swaps that one commit of placement granted."""
        first = {consumer for consumer, attempt in granted if attempt == FIRST_ATTEMPT}
        if self._check(first, "are claimed by one commit"):
            self._findings.count(WHOLE, "all claimed")

    def written(self, rows: Iterable[InstanceRow]) -> None:
        """Take in the rows that one commit of a scheduler decided for the first time."""
        rows = [row for row in rows if row.id in self._request_of]
        if self._check({row.id for row in rows if row.told.state == PLACED}, "are placed by one commit"):
            self._findings.count(WHOLE, "all placed")
        if any("would fit" in row.told.reason for row in rows):
            self._findings.count(WHOLE, "none placed")

    def _check(self, ids: Collection[InstanceId], what: str) -> bool:
        requests = {self._request_of[id_] for id_ in ids if id_ in self._request_of}
        for request in sorted(requests, key=str):
            all_of_it = self._instances[request]
            if missing := all_of_it - set(ids):
                self._findings.breaks(
                    PROMISE,
                    f"{len(all_of_it) - len(missing)} of {len(all_of_it)} instances of {short_id(request)} {what}",
                )
        return bool(requests)


POWER = "power"
POWER_PROMISE = "an instance runs if it is active, and not if it is stopped"
# Of an attempt that runs no instance.
OFF = (AttemptState.STOPPING, AttemptState.STOPPED)


class PowerChecker:
    def __init__(self, findings: Findings, real_instances: RealInstances) -> None:
        self._findings = findings
        self._real_instances = real_instances

    def becomes(self, row: Instance, was: str) -> None:
        """The row has this state now, by this commit."""
        if row.state not in ("active", "stopped") or row.host is None:
            return
        if row.move is not None:
            self._findings.count(POWER, f"{row.move.kind}: {was} to {row.state}")
        state = self._real_instances.state_of(row.id, row.host.share.host, row.host_attempt)
        # A host may have lost it with its power.
        if state is None or (state is AttemptState.STOPPED if row.state == "stopped" else state not in OFF):
            return
        self._findings.breaks(
            POWER_PROMISE,
            f"{short_id(row.id)} is {row.state}, and its attempt on {row.host.name} is {state.value}",
        )


OUTAGE = "outage"
# A host was chosen before the cell was known to be down, and its claim was slow; or a scheduler's clock was set back.
SLOW_S = 6.0


class OutagesChecker:
    def __init__(self, findings: Findings, plan: Plan) -> None:
        self._findings = findings
        down_s = plan.settings.get("cell_down_s", SCHEDULER.cell_down_s)
        self._known_after_s = down_s + SCHEDULER_PACE.hosts_poll_s + SLOW_S
        # A scheduler gives every cell some time when it starts.
        self._started_s = 0.0
        # The last heartbeat of each cell that said it can work.
        self._heard_s = dict.fromkeys(CELLS, 0.0)

    def beat(self, cell: str, works: bool) -> None:  # noqa: FBT001 - a value of the message
        """A conductor of this cell says whether it can work."""
        if works:
            self._heard_s[cell] = self._findings.now_s

    def scheduler_started(self) -> None:
        self._started_s = self._findings.now_s

    def written(self, rows: Iterable[InstanceRow], before: Mapping[InstanceId, InstanceRow]) -> None:
        since_s = self._findings.now_s - self._known_after_s
        down = [cell for cell in CELLS if max(self._heard_s[cell], self._started_s) < since_s]
        if not down:
            return
        for row in rows:
            was = before.get(row.id)
            if row.told.state != PLACED or (was is not None and was.told.state == PLACED):
                continue
            if row.told.cell in down:
                self._findings.breaks(
                    "boots avoid a cell that is down",
                    f"{short_id(row.id)} is placed in {row.told.cell}, which was last heard {self._heard_s[row.told.cell]:.1f}",
                )
            self._findings.count(OUTAGE, "a boot went elsewhere")


TIMED_OUT = "no message from the host within"


class SilenceChecker:
    def __init__(self, findings: Findings, hosts: HostHistories) -> None:
        self._findings = findings
        self._hosts = hosts
        # Since when each conductor has listened without a fault.
        self._listens_since_s: dict[str, float] = {}
        self._began_s: dict[InstanceId, float] = {}

    def disturbed(self, process: str) -> None:
        """The process starts, dies, suffers from a fault, or reaches the broker again: it counts silence anew."""
        if process.startswith("conductor"):
            self._listens_since_s[process] = self._findings.now_s

    def all_disturbed(self) -> None:
        for process in self._listens_since_s:
            self.disturbed(process)

    def begins(self, instance: InstanceId) -> None:
        self._began_s[instance] = self._findings.now_s

    def failed(self, instance: InstanceId, failure: AttemptFailed, host: Choice, cell: str) -> None:
        if not failure.reason.startswith(TIMED_OUT):
            return
        silent_s, began_s = self._hosts.silent_since_s(host.share.host), self._began_s[instance]
        noticed_s = [
            max(silent_s, since_s) + BUS.host_down_s
            for name, since_s in self._listens_since_s.items()
            if f"-{cell}-" in name
        ]
        # A conductor that notices the silence reads the rows that wait, once. A later attempt there it sees only if it placed
        # that itself; another one may have listened for too short a time to know.
        leaves_s = min((at_s for at_s in noticed_s if at_s >= began_s), default=began_s) + SLOW_S
        if silent_s < leaves_s < self._findings.now_s:
            self._findings.breaks(
                "a build leaves a silent host",
                f"{failure.host} is silent since {silent_s:.1f}, and attempt {failure.attempt} there waited for its whole time",
            )


FEED = "feed"
HEARD = "each reader of the feed has the newest state"
# Of the network, and of the pages that are read one after the other.
SLOW_FEED_S = 3.0


def heard_within_s(bus: BusSettings, feed: FeedPace) -> float:
    """How long a scheduler may lack a change when nothing fails any more.

    It connects again. A question of before got no answer, and is asked again. And the placement worker that publishes is
    gone: another one notices that, and looks for changes.
    """
    reader_ms = bus.CONNECT_DELAY_MS_MAX + bus.answer_timeout_ms + bus.ask_again_ms
    return reader_ms / 1000 + feed.lead_again_s + feed.poll_s + SLOW_FEED_S


class FeedsChecker:
    def __init__(self, findings: Findings, books: InspectableStore, pictures: Mapping[str, Picture]) -> None:
        """`pictures` has the picture of each scheduler by its name."""
        self._findings = findings
        self._books = books
        self._pictures = pictures

    async def watch(self, within_s: float) -> None:
        """Compare again and again, beginning now, when nothing fails any more: what is in the books is in each picture
        `within_s` later.
        """
        while True:
            revisions = await self._revisions()
            known = {name: picture.trees.internals() for name, picture in self._pictures.items()}
            await asyncio.sleep(within_s)
            now = await self._revisions()
            for name, picture in self._pictures.items():
                # A provider that is deleted meanwhile may be forgotten in any way.
                behind = [
                    internal
                    for internal in picture.trees.behind(revisions, known.get(name, ()))
                    if internal in now or internal not in revisions
                ]
                if behind:
                    self._findings.breaks(
                        HEARD, f"{name} lacks changes of before {within_s:.0f} s, of the providers {behind}"
                    )
                self._findings.count(FEED, "compared")

    async def _revisions(self) -> dict[int, int]:
        async with self._books.committed() as rows:
            return {entry.internal: entry.revision for entry in rows.providers.values()}
