"""What one project may ask for: so many instances a second, and so many records that nothing frees but the project itself.

Instances that find no host cost a row here and one in placement each, and hold nothing, so neither room nor quotas bound them. A
request beyond a limit is rejected before anything is written. Limits are of projects: operators, who name none, have none.

To count them for each request would make each boot dearer. So a scheduler counts what it took itself, and asks the database only
when that may have brought the project to its limit, and after each sixteenth part of the limit: others take requests, too.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from bus.messages.build import BuildRejected
from engine.flavors import instance_id_of
from scheduler_worker.requests.reading import ValidRequest, rejection
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store_sql import SchedulerStore

# So much of a minute's rate may come at once.
BURST_S = 60.0
# What a scheduler takes before it counts again, as a part of the limit.
COUNTED_PARTS = 16
# A count costs as much as it finds. One that found too many counts for so long, at the default limit.
OVER_LIMIT_S = 1.0
OVER_LIMIT_COUNT = 100_000
# Beyond so many projects, what is known of all of them is forgotten: each may then take a burst anew.
PROJECTS_MAX = 10_000
RECENT_MAX = 10_000
_WRITTEN = "", 0


class ProjectUse(Struct):
    """What this scheduler knows of one project. `left` is how much it may take now by the rate, as of `at`; below zero, a request
    took more than was left. `counted` were there when the database was asked last, `deleted` were deleted without a host, and `since` were taken after that.
    """

    left: float
    at: datetime
    counted: int = 0
    deleted: int = 0
    since: int = 0
    counted_at: datetime | None = None


class ProjectLimits:
    def __init__(self, store: SchedulerStore, settings: SchedulerSettings) -> None:
        self._store = store
        self._rate = settings.project_rate
        self._max = settings.project_records_max
        self._of: dict[str, ProjectUse] = {}
        # The requests that were taken last, since a client that waits sends copies; with their projects and counts until they are written.
        self._recent: dict[int, tuple[str, int]] = {}

    async def judged(
        self, requests: Sequence[ValidRequest], now: datetime
    ) -> tuple[Sequence[ValidRequest], Sequence[tuple[ValidRequest, BuildRejected]]]:
        """The requests that their projects may ask for, and the others, each with the reason. A request that was taken before is not
        judged: it is answered as it was.
        """
        asked = Counter[str]()
        for one in requests:
            if project := one.ask.message.project:
                asked[project] += one.ask.message.count
        for project, count in asked.items():
            await self.look(project, count, now)
        refused: list[tuple[ValidRequest, BuildRejected]] = []
        for one in requests:
            build = one.ask.message
            # An earlier try may have claimed for it: it goes on, and releases that if it must.
            if not build.project or one.ask.attempts or one.id.int in self._recent:
                continue
            if reason := self.over(build.project, build.count, now):
                refused.append((one, rejection("project", build.project, reason, one.id)))
            else:
                self._recent[one.id.int] = build.project, build.count
        while len(self._recent) > RECENT_MAX:
            del self._recent[next(iter(self._recent))]
        if not refused:
            return requests, ()
        first = [
            next(iter(one.ask.message.instance_ids), None) or instance_id_of(one.id, 0) for one, _ in refused
        ]
        known = {row.told.request_id for row in (await self._store.rows_of(first)).values()}
        refused = [(one, why) for one, why in refused if one.id not in known]
        over = {id(one) for one, _ in refused}
        return [one for one in requests if id(one) not in over], refused

    def written(self, requests: Sequence[ValidRequest]) -> None:
        """The rows of these requests are in the database: a count has them."""
        self._recent.update(
            dict.fromkeys([one.id.int for one in requests if one.id.int in self._recent], _WRITTEN)
        )

    def over(self, project: str, asked: int, now: datetime, *, deletes: bool = False) -> str:
        """Why the project may not ask for so many now; empty if it may, and then they are taken. `deletes`: rows of instances that are
        not known, and are deleted already.
        """
        if not project:
            return ""
        taken = self._taken(project, now)
        return self._over_rate(project, taken, asked, now) or self._over_count(
            project, taken, asked, deletes=deletes
        )

    def _over_rate(self, project: str, taken: ProjectUse, asked: int, now: datetime) -> str:
        taken.left = min(taken.left + (now - taken.at).total_seconds() * self._rate, self._rate * BURST_S)
        taken.at = now
        if taken.left > 0 or not self._rate:
            taken.left -= asked
            return ""
        return (
            f"project {project} has asked for {self._rate * BURST_S - taken.left:.0f} instances within {BURST_S:.0f} s, and may ask this "
            f"scheduler for {self._rate} a second (scheduler.project_rate): {asked} more must wait, ask again in "
            f"{-taken.left / self._rate + 1:.0f} s"
        )

    async def look(self, project: str, asked: int, now: datetime) -> None:
        """Count what the project has, if a batch that asks for so many may bring it to its limit."""
        taken = self._taken(project, now)
        since = taken.since + asked
        is_near = max(taken.counted, taken.deleted) + since > self._max or since > self._max // COUNTED_PARTS
        if project and self._max and is_near and not self._is_fresh(taken, now):
            taken.counted, taken.deleted = await self._store.unplaced(project, self._max)
            taken.counted_at = now
            taken.since = sum([count for of, count in self._recent.values() if of == project])

    def _over_count(self, project: str, taken: ProjectUse, asked: int, *, deletes: bool) -> str:
        there = (0 if deletes else taken.counted) + taken.since
        gone = taken.deleted + (taken.since + asked - 1 if deletes else 0)
        if not self._max or max(there + asked, gone + 1) <= self._max:
            taken.since += asked
            return ""
        what = (
            f"{gone} instances that were deleted before they had a host: at most {self._max} until the oldest are forgotten, two "
            "scheduler.horizon_s after they were deleted"
            if gone >= self._max
            else f"{there} instances that have no host, since they are open or ended in error, and asks for {asked} more: at most "
            f"{self._max} (scheduler.project_records_max); delete those in error, or wait until open ones have hosts"
        )
        return f"project {project} has {what}"

    def _is_fresh(self, taken: ProjectUse, now: datetime) -> bool:
        lasts = timedelta(seconds=OVER_LIMIT_S * min(1.0, self._max / OVER_LIMIT_COUNT))
        is_over = max(taken.counted, taken.deleted) >= self._max
        return is_over and taken.counted_at is not None and now - taken.counted_at < lasts

    def _taken(self, project: str, now: datetime) -> ProjectUse:
        taken = self._of.get(project)
        if taken is None:
            if len(self._of) >= PROJECTS_MAX:
                self._of.clear()
            taken = self._of[project] = ProjectUse(self._rate * BURST_S, now)
        return taken
