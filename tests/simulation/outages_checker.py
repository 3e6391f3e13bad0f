"""Boots avoid a cell that is down: one in which no conductor has said for long that it can work."""

from collections.abc import Iterable, Mapping

from engine.flavors import InstanceId
from scheduler_worker.core.instances.rows import PLACED, InstanceRow
from tests.simulation.findings import Findings
from tests.simulation.host_history import short_id
from tests.simulation.plan import CELLS, Plan
from tests.simulation.workers import SCHEDULER, SCHEDULER_PACE

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
