"""Follows what waits for room in the rows of the API level: a move gets room that is there, and the highest priority goes first.

Only moves and boots that name one host are judged: where others have room, too, the order does not show.
"""

from typing import NamedTuple
from uuid import UUID

from engine.flavors import InstanceId  # noqa: TC001 - imported like every other type
from scheduler_worker.core.instances.rows import WAITING, InstanceRow
from tests.simulation.findings import Findings
from tests.simulation.host_history import HostHistories, short_id
from tests.simulation.plan import Plan
from tests.simulation.workers import BUS

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
