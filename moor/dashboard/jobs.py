"""What users have ordered by the dashboard: each order is a job, which goes on whatever its browser does.

A job that ends leaves what became of it for a while. The end of the process ends the jobs: a drain then orders nothing more.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct, field

from kit.errors import ConnectionLost, Failure, Refusal
from kit.logs import InstanceLine, InstanceLog
from kit.times import now
from moor.client.errors import ClientError
from moor.client.moving import Stayed
from moor.dashboard.rendering import PageRefused

log = logging.getLogger(__name__)
lines = InstanceLog(__name__)

# Beyond these, the oldest that has ended is forgotten.
JOBS_MAX: Final = 500
UNDER_WAY_MAX: Final = 20
# What a page may wait for, before it says that the job goes on.
SOON_S: Final = 1.5


class TooManyJobs(Exception):  # noqa: N818 - named for what happened
    """So many jobs go on that no other may begin."""


class DashboardJob(Struct, eq=False):
    """`about` is what it acts on: at most one job about it goes on. `by` is the user, and `project` theirs; empty for an
    administrator.
    """

    id: str
    title: str
    about: str
    by: str
    project: str
    # The page to which its reader returns.
    back: str
    begun_at: datetime
    state: str = "going on"
    said: list[str] = field(default_factory=list)
    # Only the last line of it is shown: there may be thousands.
    progress: str = ""
    stayed: Sequence[Stayed] = ()
    ended_at: datetime | None = None
    task: asyncio.Task[None] | None = None

    @property
    def goes_on(self) -> bool:
        return self.ended_at is None

    def say(self, line: str) -> None:
        self.said.append(line)

    def show_progress(self, line: str) -> None:
        self.progress = line


class JobList:
    def __init__(self) -> None:
        self._jobs: OrderedDict[str, DashboardJob] = OrderedDict()

    def find(self, id_: str) -> DashboardJob | None:
        return self._jobs.get(id_)

    def about(self, what: str) -> DashboardJob | None:
        """The job about this that goes on."""
        return next((each for each in self._jobs.values() if each.goes_on and each.about == what), None)

    def begin(self, job: DashboardJob, work: Callable[[], Awaitable[None]]) -> None:
        """Raises TooManyJobs."""
        if sum(each.goes_on for each in self._jobs.values()) >= UNDER_WAY_MAX:
            raise TooManyJobs(f"{UNDER_WAY_MAX} orders go on; wait until one has ended")
        while len(self._jobs) >= JOBS_MAX:
            del self._jobs[next(id_ for id_, each in self._jobs.items() if not each.goes_on)]
        self._jobs[job.id] = job
        job.task = asyncio.create_task(_run(job, work))

    async def soon(self, job: DashboardJob) -> None:
        """Return when the job has ended, or after a short while."""
        if job.task is not None:
            await asyncio.wait((job.task,), timeout=SOON_S)

    async def stop(self, job: DashboardJob) -> None:
        if job.task is not None and job.goes_on:
            job.task.cancel()
            await asyncio.wait((job.task,))

    async def close(self) -> None:
        for each in self._jobs.values():
            await self.stop(each)


async def _run(job: DashboardJob, work: Callable[[], Awaitable[None]]) -> None:
    _log_line("order of the dashboard", job, job.about)
    try:
        await work()
        job.state = "done"
    except asyncio.CancelledError:
        job.state = "stopped"
        job.say("It was stopped. Nothing more is ordered; what was ordered before goes on.")
    except (ClientError, Failure, ConnectionLost, Refusal, PageRefused) as problem:
        job.state = "failed"
        job.say(str(problem))
    except BaseException:
        job.state = "failed"
        job.say("An error of the dashboard has ended it; its log has the details.")
        log.exception("order %s of the dashboard has failed", job.id)
        raise
    finally:
        job.ended_at = now()
        _log_line(f"order of the dashboard {job.state}", job, "; ".join(job.said))


def _log_line(what: str, job: DashboardJob, reason: str) -> None:
    """Names of hosts and instances are chosen by strangers; these lines escape them."""
    lines.write((InstanceLine(what, project=job.project, name=job.title, by=job.by, reason=reason),))
