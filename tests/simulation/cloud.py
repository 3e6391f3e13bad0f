"""One seed: the whole cloud on one loop carries out the plan.

A process that dies is started again under the same name; the broker and the rows stay. Once the faults stop, only hosts
may still fail, and everything must settle.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextvars import Context
from datetime import datetime, timedelta
from typing import Any

from bus.definitions import rights_by_user
from bus.memory import MemoryBroker
from bus.topology import Limits, feed_queue, objects_of, user_of
from compute_sim.core.attempts import HostOrder
from engine.flavors import InstanceId, RequestId, instance_id_of
from engine.hosts import HostState
from ironic_sync.core.ordering import believed_missing
from ironic_sync.store_sql import IronicStore
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, TreeChanges
from scheduler_worker.core.instances.rows import InstanceRow
from tests.simulation import faults as may
from tests.simulation.admins import Admins
from tests.simulation.auditor import NAME as AUDITOR
from tests.simulation.auditor import Auditor
from tests.simulation.books_checker import BooksChecker
from tests.simulation.boots_checkers import FeedsChecker, OutagesChecker, WholeChecker, heard_within_s
from tests.simulation.cells_checker import CellsChecker
from tests.simulation.clients import Client, Operator
from tests.simulation.demands_checker import DemandsChecker
from tests.simulation.drawing_cloud import ADMINS, API, COMPUTES, WORKERS
from tests.simulation.drawing_worlds import LATER
from tests.simulation.faulty_broker import FaultyBroker
from tests.simulation.faulty_database import FaultyDatabase
from tests.simulation.findings import Findings
from tests.simulation.foreign_owners import Target
from tests.simulation.host_history import HostHistories, short_id
from tests.simulation.intruders import CLIENT, RIVAL, Intruders
from tests.simulation.ironic import IronicWorld, watched_nodes
from tests.simulation.keeping import KeepingChecker
from tests.simulation.nodes_checker import NodesChecker
from tests.simulation.plan import CELLS, Plan
from tests.simulation.process import EPOCH, SimProcess
from tests.simulation.real_instances import RealInstances
from tests.simulation.requests_checker import RequestsChecker
from tests.simulation.shares_checkers import FlavorsChecker
from tests.simulation.traffic import Traffic
from tests.simulation.workers import BUS, FEED_PACE, IRONIC, Rows, Workers, station_name
from tests.simulation.write_oracle import WriteOracle

# Server groups would come first; no write here locks one.
LOCK_ORDER = ("quotas", "consumers", "trees", "names")
CLIENTS = ("client", "operator", *ADMINS)
# How long after an outage of a cell its hosts may still not be chosen.
KNOWN_TO_BE_BACK_S = 8.0
# How often the checker compares which daemons act on which nodes.
RING_CHECK_S = 0.2
# After a fault of a daemon its nodes may be down for this long.
NODES_DOWN_S = 20.0


class Cloud:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.findings = Findings()
        self.rows = Rows()
        self.hosts = HostHistories(self.findings, plan.script, plan.settings.get("failed_builds_max", 0))
        ports = {instance_id_of(RequestId(boot.id), 0): boot.ports for boot in plan.boots if boot.ports}
        self.nodes = NodesChecker(self.findings, IRONIC.lease_margin_s, ports)
        self.real_instances = RealInstances(self.findings, self.nodes, plan.builds_at_once_max)
        whole = WholeChecker(self.findings, plan)
        self.books = BooksChecker(
            self.findings, self.hosts, self.real_instances, plan.instances_max, plan.groups, whole=whole
        )
        self.demands = DemandsChecker(self.findings, plan, self.books)
        self.flavors = FlavorsChecker(self.findings, self.hosts, plan)
        self.requests = RequestsChecker(
            self.findings,
            self.hosts,
            self.books.groups,
            plan,
            demands=self.demands,
            whole=whole,
            nodes=self.nodes,
        )
        self.cells = CellsChecker(self.findings, self.real_instances, self.hosts)
        self.outages = OutagesChecker(self.findings, plan)
        self.keeping = KeepingChecker(self.findings, self.rows.keeping, self)
        self._objects = objects_of(CELLS, limits=Limits())
        rights = rights_by_user(self._objects.exchanges, CELLS, applications=(CLIENT, RIVAL))
        self.memory = MemoryBroker(rights.values())
        self.traffic = Traffic(self.findings, rights, self.outages)
        self.ironic = IronicWorld(plan, self.findings, self.memory, self.nodes) if plan.nodes else None
        # The instances that this cloud may deploy on nodes.
        self.instance_ids = plan.instance_ids
        self.workers = Workers(plan, self.rows, self.nodes, self.ironic)
        self._feeds = FeedsChecker(self.findings, self.rows.books, self.workers.pictures)
        self.client = Client(plan, self.findings)
        self._operator = Operator(plan, self.findings)
        self.write_oracle = WriteOracle(self.findings, self.rows.books)
        self.admins = Admins(plan, self.findings, self.rows.books)
        self._auditor = Auditor(self.real_instances, self.books)
        self.intruders = Intruders(self.findings, self.memory, rights, self)
        # The names of hosts that several cells have, in lower case, about which a scheduler has raised an alarm.
        self.alarms: set[str] = set()
        self._processes: dict[str, SimProcess] = {}
        self._incarnations: dict[str, int] = {}
        self._zombies: list[SimProcess] = []
        self._away_since: dict[str, float] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._outage: may.CellDown | None = None
        self._outage_until_s = 0.0
        self._has_stopped_faults = False
        self._is_over = False
        self._loop = asyncio.get_running_loop()

    # Start and end

    async def open(self) -> None:
        await self._declare()
        if self.ironic is None:
            keepers = [f"keeper-{number + 1}" for number in range(self.plan.keepers)]
            self._start_all((*WORKERS, *COMPUTES, *keepers, *CLIENTS))
        else:
            self._tasks += [
                self._loop.create_task(self._watched_ironic(self.ironic)),
                self._loop.create_task(self._watch_ring()),
            ]
            self._start_all((*WORKERS, "client", "operator"))
        for name, at_s in self.plan.daemons.items():
            self._loop.call_at(at_s, self._start, name, context=Context())
        for fault in self.plan.faults:
            self._loop.call_at(fault.at_s, self._inject, fault, context=Context())
        for host_fault in self.plan.script.faults:
            if host_fault.after_s:
                kind = str(host_fault.__struct_config__.tag)
                self._loop.call_at(host_fault.after_s, self.findings.count, "host", kind, context=Context())

    def stop_faults(self) -> None:
        """From now on nothing fails. Dead processes start again, and zombies die."""
        self._has_stopped_faults = True
        self.traffic.stop_faults()
        if self.ironic is not None:
            self.ironic.stop_faults()
        for zombie in self._zombies:
            zombie.die()
        for name, process in list(self._processes.items()):
            if process.is_dead:
                self._start(name)
            process.stop_faults()
        watch = self._feeds.watch(heard_within_s(BUS, FEED_PACE))
        self._tasks.append(self._loop.create_task(watch))

    async def audit(self) -> list[str]:
        """The faults that `moor audit` reports although there are none."""
        self._start(AUDITOR)
        return await self._auditor.result

    def close(self) -> None:
        self._is_over = True
        for task in self._tasks:
            task.cancel()
        for process in (*self._processes.values(), *self._zombies):
            process.die()

    # Processes

    def _start_all(self, names: Iterable[str]) -> None:
        for name in names:
            self._start(name)

    def _start(self, name: str) -> None:
        standing = self._processes.get(name)
        if standing is not None and not standing.is_dead and standing not in self._zombies:
            return
        if self._must_stay_down(name):
            self._loop.call_at(self._outage_until_s, self._start, name, context=Context())
            return
        incarnation = self._incarnations[name] = self._incarnations.get(name, 0) + 1
        process = self._processes[name] = SimProcess(name, incarnation, self.plan.seed, self)
        if name in self._away_since:
            away = self.hosts.away[name.partition("-")[2]]
            away.append((self._away_since.pop(name), self._loop.time()))
        self.findings.log(process.full_name, "starts")
        self._suffers(process)
        if name.startswith("compute-"):
            self.hosts.computes_started(name.partition("-")[2])
        self.cells.silence.disturbed(name)
        if name in API:
            self.outages.scheduler_started()
        broker = FaultyBroker(self.memory, _user(name), process)
        process.start(self._watched(process, broker))

    async def _watched(self, process: SimProcess, broker: FaultyBroker) -> None:
        """Run a process to its end. An exception that ends it is a bug: a worker must survive every fault that is
        injected here.
        """
        runners: dict[str, Client | Operator | Workers | Admins | Auditor] = {
            "client": self.client,
            AUDITOR: self._auditor,
            "operator": self._operator,
            **dict.fromkeys(ADMINS, self.admins),
        }
        try:
            await runners.get(process.name, self.workers).run(process, broker)
            if process.told_to_stop.is_set():
                process.die()
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is what was looked for
            self.findings.breaks(
                "no worker stops on an error", f"{process.full_name}: {_innermost(problem)!r}"
            )

    def was_cut(self, process: str) -> None:
        self.cells.silence.disturbed(process)

    def came_back(self, process: SimProcess) -> None:
        # A zombie has the name of its successor, which listens already.
        if process not in self._zombies:
            self.cells.silence.disturbed(process.name)

    def died(self, process: SimProcess, *, quiet_s: float) -> None:
        if self._is_over:
            return
        self.findings.log(process.full_name, "dies")
        self.traffic.died(process)
        role, _, cell = process.name.partition("-")
        if role == "compute":
            self.real_instances.power_lost(cell)
            self._away_since[process.name] = self._loop.time()
        for queue in _queues_of(process.name) if quiet_s else ():
            self.traffic.delay("", queue, self._loop.time() + quiet_s)
        if role == "ironic":
            self._nodes_may_be_down()
        if process not in self._zombies:
            self._loop.call_later(process.down_s, self._start, process.name, context=Context())

    def fired(self, fault: str, process: str) -> None:
        self.traffic.fired(fault, process)
        if fault == "broker_restart":
            self.cells.silence.all_disturbed()
        else:
            self.cells.silence.disturbed(process.partition(".")[0])
        if process.startswith("ironic") or fault == "broker_restart":
            self._nodes_may_be_down()

    def _nodes_may_be_down(self) -> None:
        """From now on nodes may be down for a while, because no daemon reports them."""
        for away in self.hosts.away.values():
            away.append((self._loop.time(), self._loop.time() + NODES_DOWN_S))

    # Bare metal

    async def _watched_ironic(self, ironic: IronicWorld) -> None:
        try:
            with watched_nodes(self.nodes):
                await ironic.run()
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is what was looked for
            self.findings.breaks("no worker stops on an error", f"Ironic: {_innermost(problem)!r}")

    async def mend_nodes(self) -> None:
        """What `moor status` asks a person for: nodes that Ironic has lost are gone indeed, and others are repaired there."""
        if self.ironic is None:
            return
        self.ironic.mend()
        store = IronicStore(FaultyDatabase(self.rows.nodes.tables, self._processes["operator"]))
        rows = (await store.read([each.id for each in await store.owners()])).values()
        if lost := [row.id for row in rows if row.missing_since_us and self.ironic.has_lost(row.id)]:
            async with store.transaction() as transaction:
                await transaction.save(
                    [believed_missing(row) for row in (await transaction.load(lost)).values()]
                )

    async def _watch_ring(self) -> None:
        while True:
            await asyncio.sleep(RING_CHECK_S)
            self.nodes.check_owners(self.nodes.real_nodes)
            self.nodes.check_leases(await self.rows.nodes.members())

    # Faults

    def _inject(self, fault: may.Fault) -> None:
        if self._has_stopped_faults or self.findings.broken is not None:
            return
        if not fault.process:
            self._inject_for_all(fault)
            return
        process = self._processes.get(fault.process)
        if process is not None and not (process.is_dead or self._is_armed(fault, process)):
            self.fired(fault.name, process.full_name)
            self._inject_now(fault, process)

    def _inject_for_all(self, fault: may.Fault) -> None:
        """Faults that concern no single process."""
        match fault:
            case may.RoleDown(role=role, for_s=for_s):
                self.fired(fault.name, role)
                self._down([name for name in WORKERS if name.startswith(role)], for_s)
            case may.CellDown():
                self.fired(fault.name, fault.cell)
                self._cell_down(fault)
            case may.BrokerRestart():
                self.fired(fault.name, "the broker")
                self.memory.restart()
            case may.QueueGone(queue=queue, for_s=for_s):
                self.fired(fault.name, queue)
                self.memory.host.delete_queue(queue)
                self._loop.call_later(for_s, self._declare_again, context=Context())
            case may.IronicAway(for_s=for_s):
                assert self.ironic is not None, "there is no Ironic"
                self.fired(fault.name, "Ironic")
                self.ironic.ironic.go_away(for_s)
            case may.Duplicate():
                self.traffic.copy_next(fault)
            case may.Nack():
                self.traffic.nack_next(fault)
            case may.Unroutable():
                self.traffic.route_nothing(fault)
            case may.Hostile():
                self._tasks.append(self._loop.create_task(self.intruders.attack(fault)))
            case _:
                raise ValueError(f"unknown fault of no single process: {fault!r}")

    def _is_armed(self, fault: may.Fault, process: SimProcess) -> bool:
        """True if the fault fires only when the process next reaches the place where it applies."""
        match fault:
            case may.CrashAt(point=point, down_s=down_s, quiet_s=quiet_s):
                process.arm_crash(point, quiet_s)
                process.down_s = down_s
                return True
            case may.DatabaseAway(for_s=for_s):
                away_until_s = max(process.database_away_until_s, self._loop.time() + for_s)
                process.database_away_until_s = away_until_s
                return True
            case may.LateConfirms(by_s=by_s):
                process.confirms_late_s = by_s
            case may.LateRedelivery(held_s=held_s):
                process.held_s = held_s
            case _:
                pass
        if fault.name in may.ARMED_FAULTS:
            process.armed[fault.name] += getattr(fault, "parcels", 1)
        return fault.name in may.ARMED_FAULTS

    def _inject_now(self, fault: may.Fault, process: SimProcess) -> None:
        match fault:
            case may.Crash(down_s=down_s):
                self._down([process.name], down_s)
            case may.Zombie(away_s=away_s, for_s=for_s):
                self._zombies.append(process)
                process.go_offline()
                self._start(process.name)
                self._loop.call_later(away_s, process.go_online, context=Context())
                self._loop.call_later(for_s, process.die, context=Context())
            case may.FeedGone(for_s=for_s):
                process.go_offline()
                self.memory.host.delete_queue(_feed_of(process))
                self._loop.call_later(for_s, process.go_online, context=Context())
            case may.Cut():
                process.cut("the network failed")
            case may.Reorder(queue=queue, for_s=for_s):
                self.traffic.delay(process.name, queue, self._loop.time() + for_s)
            case may.Pause(for_s=for_s):
                process.pause(for_s)
            case may.Leave(down_s=down_s):
                process.down_s = down_s
                process.told_to_stop.set()
            case may.Drain(for_s=for_s):
                self._drain(process.name, draining=True)
                self._loop.call_later(for_s, self._drain, process.name, False, context=Context())
            case may.ClockJump(by_s=by_s):
                process.clock_offset_s += by_s
            case _:
                raise ValueError(f"unknown fault of a process: {fault!r}")

    def _down(self, names: Sequence[str], for_s: float) -> None:
        for name in names:
            self._processes[name].down_s = for_s
            self._processes[name].die()

    def _cell_down(self, fault: may.CellDown) -> None:
        """Begin the outage of a cell. Its hosts are no candidates meanwhile, and until schedulers have heard that the
        cell is back.
        """
        self._outage = fault
        self._outage_until_s = self._loop.time() + fault.for_s
        until_s = self._outage_until_s + KNOWN_TO_BE_BACK_S
        self.hosts.away[fault.cell].append((self._loop.time(), until_s))
        names = [name for name in self._processes if _is_in(name, fault)]
        if fault.what == "conductors":
            self._down(names, fault.for_s)
        for name in names:
            self._suffers(self._processes[name])

    def _must_stay_down(self, name: str) -> bool:
        fault, is_over = self._outage, self._loop.time() >= self._outage_until_s or self._has_stopped_faults
        return not is_over and fault is not None and fault.what == "conductors" and _is_in(name, fault)

    def _suffers(self, process: SimProcess) -> None:
        """Apply the outage of its cell to a living process, now or at its start."""
        fault, until_s = self._outage, self._outage_until_s
        if fault is None or self._loop.time() >= until_s or not _is_in(process.name, fault):
            return
        if fault.what == "database":
            process.database_away_until_s = until_s
        elif fault.what == "broker":
            process.go_offline()
            self._loop.call_at(until_s, process.go_online, context=Context())

    def _drain(self, daemon: str, draining: bool) -> None:  # noqa: FBT001 - the value set
        """Does what `moor node ring drain` does."""
        work = self.rows.nodes.set_draining(daemon, draining=draining)
        self._tasks.append(self._loop.create_task(work))

    async def _declare(self) -> None:
        connection = self.memory.connect("")
        await connection.declare(self._objects)
        await connection.close()

    def _declare_again(self) -> None:
        self._tasks.append(self._loop.create_task(self._declare()))

    # Knowledge for intruders

    def targets(self) -> list[Target]:
        return [
            Target(
                row.id,
                row.request_id,
                row.order.cell,
                row.host.share.host,
                row.host.name,
                row.host_attempt,
                row.order.group,
            )
            for row in self.cells.rows.values()
            if row.state == "active" and row.host is not None and row.order is not None
        ]

    def upcoming(self) -> dict[InstanceId, str]:
        later = [boot for boot in self.plan.boots if boot.name.startswith(LATER)]
        return {
            instance_id_of(RequestId(boot.id), index): boot.name.removeprefix(LATER)
            for boot in later
            for index in range(boot.count)
        }

    def unused_names(self, cell: str) -> list[str]:
        plan = self.plan
        used = {each.host for each in plan.disabled_hosts} | {each.host for each in plan.host_orders}
        used |= {each.host for each in plan.evacuations} | {boot.host for boot in plan.boots}
        return [host.name for host in plan.hosts[cell] if host.name not in used]

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._loop.time())

    def answer_queues(self) -> list[str]:
        return [queue for name, queue in self.traffic.answers_of.items() if name in API]

    # Called by the stores at each commit

    def locks(self, kind: str, *, after: Sequence[str]) -> None:
        if any(LOCK_ORDER.index(earlier) > LOCK_ORDER.index(kind) for earlier in after):
            self.findings.breaks("one lock order for every writer", f"{kind} are locked after {after}")

    def books_written(
        self, orders: Sequence[ClaimOrder], written: Sequence[ClaimChanges | TreeChanges]
    ) -> None:
        self.books.written(orders, written)
        if self.plan.has_demands:
            self.demands.written(orders, written)
        if self.plan.nodes:
            self.nodes.written(orders, written)
        self.write_oracle.written(written)

    def requests_written(self, rows: Iterable[InstanceRow], hosts: Sequence[HostState]) -> None:
        for host in hosts:
            self.hosts.registered(host)
        rows = [*rows]
        self.outages.written(rows, self.requests.rows)
        self.flavors.written(rows, self.requests.rows)
        self.requests.written(rows)
        if self.plan.keepers:
            self.keeping.requests_written(rows)

    def cannot_give(self, order: HostOrder, words: str) -> None:
        self.findings.breaks(
            "a host can give each share that it is told to give", f"{short_id(order.instance)}: {words}"
        )


def _is_in(name: str, fault: may.CellDown) -> bool:
    """Whether the process of this name suffers from the outage of its cell."""
    role, _, rest = name.partition("-")
    return rest.partition("-")[0] == fault.cell and (
        role == "conductor" or (role == "compute" and fault.what == "broker")
    )


def _user(name: str) -> str:
    role, _, rest = name.partition("-")
    if role in ("conductor", "compute"):
        return user_of(role, rest.partition("-")[0])
    if role == "client":
        return CLIENT.user
    return user_of("operator" if role == "admin" else role)


def _feed_of(process: SimProcess) -> str:
    return feed_queue(_user(process.name), station_name(process), ()).name


def _queues_of(name: str) -> tuple[str, ...]:
    """The ends of the names of the queues that this process consumes."""
    role, _, rest = name.partition("-")
    match role:
        case "scheduler":
            return (".requests", "scheduler.events")
        case "placement":
            return ("placement.work", "placement.claims", "placement.questions")
        case "keeper":
            return ("keeper.requests", "keeper.events")
        case _:
            return (f"{role}.{rest.partition('-')[0]}.work",)


def _innermost(problem: BaseException) -> BaseException:
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem
