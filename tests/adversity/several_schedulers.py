"""Clouds with several scheduler processes on the real broker and PostgreSQL, watched at every commit of placement.

The tests run them small. At their whole size, with the figures printed:

    python -m tests.servers -- python -m tests.adversity.several_schedulers
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from msgspec import Struct

from bus.messages.books import Done, SetQuota, WriteAnswered
from bus.messages.build import BuildInstance, InstanceState
from bus.messages.projects import CreateGroup, GroupsFound
from bus.topology import CELL0, user_of
from bus.workers.connections import Station
from engine.flavors import JoinedGroup
from engine.inventories import GroupId
from tests.adversity.real_cloud import RealCloud, a_build, instance_of, real_cloud
from tests.adversity.worker_process import BUS
from tests.contracts.small_world import connected
from tests.contracts.sql_stores import administer
from tests.running import running
from tests.waiting import until

CELLS = ("c1", "c2")
APART = JoinedGroup(id=GroupId(UUID(int=77)))
DEADLINE_S = 300
# Simulated hosts offer each CPU four times.
CPU_RATIO = 4
CLIENTS = 8
# As below.
PROJECT = "shop"

# At each commit that gives a consumer a share: how many consumers its host has, and how many of its server group. The lock lasts
# until the commit is visible. So of two transactions that did not see each other, the second one is counted with the first.
_WATCH = """
CREATE TABLE looks (host uuid, consumers bigint, members bigint);
CREATE INDEX ON consumers (host);
CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.held <> '{}' THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(NEW.host::text, 0));
        INSERT INTO looks SELECT NEW.host, count(*), count(*) FILTER (WHERE server_group = NEW.server_group)
            FROM consumers WHERE host = NEW.host AND held <> '{}';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER watched AFTER INSERT OR UPDATE ON consumers DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION look();
"""


# At each commit that gives an instance of the project a share: how many instances that has. As above, the lock lasts until the commit
# is visible.
_WATCH_PROJECT = """
CREATE TABLE project_looks (instances bigint);
CREATE FUNCTION look_at_project() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1);
    INSERT INTO project_looks
        SELECT count(*) FROM consumers WHERE project_id = NEW.project_id AND type = 'INSTANCE' AND held <> '{}';
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER project_watched AFTER INSERT OR UPDATE ON consumers DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.project_id = 'shop' AND NEW.held <> '{}') EXECUTE FUNCTION look_at_project();
"""


class Size(Struct, frozen=True, kw_only=True):
    """`capacity`: how many instances fit on a host by its CPUs. `instances_max`: how many it may have by the setting.
    `io_ops_weight`: what a host's builds under way count, which schedulers hear late. `limit`: the project's quota of instances.
    """

    schedulers: int
    hosts: int
    boots: int
    capacity: int = 64
    instances_max: int = 50
    failing: float = 0.0
    placements: int = 1
    io_ops_weight: float = -1.0
    limit: int | None = None


class Run(Struct, frozen=True):
    """One finished run. `most_consumers` and `most_members`: the most on one host at any commit. `most_of_project`: of the one that
    has a limit.
    """

    size: Size
    states: Sequence[InstanceState]
    hosts: Mapping[str, UUID]
    looks: int
    most_consumers: int
    most_members: int
    most_of_project: int
    seconds: float
    problems: Sequence[str]

    @property
    def ends(self) -> Counter[str]:
        return Counter(state.state for state in self.states)

    @property
    def refused(self) -> list[InstanceState]:
        """The instances for which nothing was ever claimed."""
        return [state for state in self.states if state.state == "error" and state.cell == CELL0]

    @property
    def conflicts(self) -> int:
        """Claims that placement refused, since the picture of their scheduler was outdated."""
        return sum(len(state.refusals) for state in self.states)

    @property
    def claims(self) -> int:
        return self.conflicts + sum(state.cell != CELL0 for state in self.states)

    @property
    def conflict_share(self) -> float:
        return self.conflicts / self.claims

    def __str__(self) -> str:
        size, reasons = self.size, Counter(state.reason for state in self.refused)
        return (
            f"{size.schedulers} schedulers, {size.placements} placement workers, {size.boots} boots at {size.hosts} hosts, "
            f"{size.failing:.0%} of the spawns fail: {dict(sorted(self.ends.items()))} in {self.seconds:.1f} s; "
            f"{self.conflicts} of {self.claims} claims were refused ({self.conflict_share:.2%}), and boots because of: "
            f"{dict(reasons)}; at {self.looks} commits at most {self.most_consumers} instances on a host, "
            f"{self.most_members} of the group, {self.most_of_project} of the project, whose limit is {size.limit}"
        )


async def run(size: Size, **fields: Any) -> Run:
    """Equal instances at equal hosts. Their builds have these fields."""
    async with _several(size) as here:
        answer = await here.client.ask(CreateGroup(id=APART.id, policy="anti-affinity", name="apart"))
        assert isinstance(answer, GroupsFound), answer
        answer = await here.client.ask(SetQuota(project=PROJECT, limits={"instances": size.limit}))
        assert answer == WriteAnswered(verdict=Done()), answer
        began_s = time.monotonic()
        await _send(
            here, [a_build(number, deadline_s=DEADLINE_S, **fields) for number in range(1, size.boots + 1)]
        )
        await here.until_in(size.boots, "active", "error")
        seconds = time.monotonic() - began_s
        await _until_only_the_active_hold(here)
        ((looks, consumers, members, of_project),) = await here.rows(
            "SELECT count(*), max(consumers), max(members), (SELECT coalesce(max(instances), 0) FROM project_looks) FROM looks"
        )
        return Run(
            size,
            await here.instances(),
            {host.name: host.id for host in await here.hosts()},
            looks,
            consumers,
            members,
            of_project,
            seconds,
            await here.books.audit(),
        )


@asynccontextmanager
async def _several(size: Size) -> AsyncIterator[RealCloud]:
    # A second cell is two more processes.
    cells = CELLS[: 1 + (size.hosts >= 50)]
    async with real_cloud(
        *cells,
        HOSTS_PER_CELL=str(size.hosts // len(cells)),
        VCPUS_PER_HOST=str(size.capacity // CPU_RATIO),
        INSTANCES_PER_HOST_MAX=str(size.instances_max),
        SPAWNS_FAILING=str(size.failing),
        IO_OPS_WEIGHT=str(size.io_ops_weight),
    ) as here:
        await administer(_WATCH, url=here.database_url)
        await administer(_WATCH_PROJECT, url=here.database_url)
        schedulers = [f"scheduler-{number}" for number in range(1, size.schedulers + 1)]
        of_cells = [f"{kind}-{cell}" for cell in cells for kind in ("conductor", "compute")]
        placements = [f"placement-{number}" for number in range(1, size.placements + 1)]
        await here.start(*placements, *schedulers, *of_cells)
        await here.until_up(size.hosts)
        async with connected(here.under_test.broker()) as connection:
            await until(
                lambda: connection.consumers("scheduler.requests"),
                "all schedulers take requests",
                lambda found: found == len(schedulers),
            )
        yield here


async def _send(here: RealCloud, builds: Sequence[BuildInstance]) -> None:
    """From several clients at once: a client puts up to 200 requests into one parcel, which goes to one scheduler."""
    clients = [
        Station(here.under_test.broker(user_of("operator")), f"client-{number}", settings=BUS)
        for number in range(CLIENTS)
    ]
    async with running(clients, *clients):
        await asyncio.gather(
            *[clients[number % CLIENTS].publisher.send(build) for number, build in enumerate(builds)]
        )


async def _until_only_the_active_hold(here: RealCloud) -> None:
    """Hosts of failed spawns confirm that nothing runs there; until then a share may be held for them."""
    active = "SELECT count(*) FROM requested_instances WHERE state = 'active'"
    query = f"SELECT ({active}), count(*) FROM consumers WHERE held <> '{{}}'"  # noqa: S608
    await until(
        lambda: here.rows(query),
        "only active instances hold something",
        lambda counts: all(living == holding for living, holding in counts),
    )


def unexplained(run: Run) -> list[str]:
    """Errors of group members that do not say why: each refusal by the group must name the host, and a member on it."""
    members = {str(instance_of(a_build(number))) for number in range(1, run.size.boots + 1)}
    problems = []
    for state in run.states:
        if state.state != "error":
            continue
        said = [(failure.host, failure.reason) for failure in state.failures]
        said += [(refused.host, refused.reason) for refused in state.refusals]
        if state.no_valid_host is not None:
            steps = [step for step in state.no_valid_host.steps if step.step == "anti-affinity"]
            said += [(step.example.partition(": ")[0], step.example) for step in steps]
            if not steps:
                problems.append(
                    f"{state.name}: no host qualifies, and no step is about the group: {state.no_valid_host}"
                )
        if not said:
            problems.append(f"{state.name}: in error without a host: {state.reason}")
        others = members - {str(state.id)}
        for host, reason in said:
            if "group" in reason and not _names(reason, host, run.hosts, others):
                problems.append(f"{state.name}: {host}: {reason}")
    return problems


def _names(reason: str, host: str, hosts: Mapping[str, UUID], members: set[str]) -> bool:
    has_host = host in reason or str(hosts[host]) in reason
    return has_host and any(member in reason for member in members)


# What runs, and what its outcome must be.
CASES: tuple[tuple[Size, dict[str, Any], Callable[[Run], bool]], ...] = (
    *(
        (
            Size(schedulers=schedulers, hosts=hosts, boots=5000),
            {},
            lambda run: run.conflict_share <= 0.02 and run.ends["active"] == 5000,
        )
        for schedulers in (2, 4)
        for hosts in (400, 100)
    ),
    *(
        (
            Size(schedulers=schedulers, hosts=20, boots=4000, capacity=400),
            {},
            lambda run: run.most_consumers == 50 and run.ends["active"] == 1000,
        )
        for schedulers in (2, 4)
    ),
    (
        Size(schedulers=4, hosts=80, boots=50, failing=0.3),
        {"group": APART},
        lambda run: run.most_members == 1 and not unexplained(run) and sum(run.ends.values()) == 50,
    ),
    (
        Size(schedulers=4, placements=2, hosts=20, boots=800, capacity=80, failing=0.05, limit=500),
        {"project": PROJECT},
        lambda run: run.most_of_project == run.ends["active"] == 500,
    ),
)


async def main() -> int:
    wrong: list[Run] = []
    for size, fields, is_right in CASES:
        found = await run(size, **fields)
        print(
            found, *found.problems, *(unexplained(found) if "group" in fields else ()), sep="\n", flush=True
        )
        if found.problems or not is_right(found):
            wrong.append(found)
    print(*wrong, sep="\n", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
