"""Runs `moor audit` at the end of a run, when everything has settled: it must find nothing. It also sends the orders
that mend, as if for rows that have changed since: they must change nothing.
"""

import asyncio
from datetime import timedelta

from msgspec import structs

from bus.broker import Broker
from bus.messages.audit import MendConsumer, MendInstance, RecountBooks, SeenConsumer
from bus.messages.books import ConsumerMoved, Done, WriteAnswered
from bus.messages.build import AskInstances, InstancesFound
from bus.workers.connections import Station
from moor.client.books.auditing import AuditOptions, Finding, audited, with_computes
from moor.client.books.books_reader import BooksReader
from moor.client.books.instance_rules import AMOUNTS, LOST, SPLIT
from moor.client.bus_client import answer_of, hosts_of
from tests.simulation.books_checker import BooksChecker
from tests.simulation.plan import CELLS
from tests.simulation.process import SimProcess
from tests.simulation.real_instances import RealInstances
from tests.simulation.workers import BUS

NAME = "operator-auditor"


class Auditor:
    def __init__(self, real_instances: RealInstances, books: BooksChecker) -> None:
        self._real_instances = real_instances
        self._books = books
        self.result: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

    async def run(self, process: SimProcess, broker: Broker) -> None:
        station = Station(
            broker, process.name, settings=BUS, asks=True, clock=process.clock, chance=process.chance
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(station.run())
            self.result.set_result(await self._audit(process, station))

    async def _audit(self, process: SimProcess, client: Station) -> list[str]:
        hosts = await hosts_of(client)
        # No claim is so new that its row may still come.
        reader = BooksReader(client, dict.fromkeys(CELLS, client), with_computes(hosts), new_s=0)
        # The clocks of processes differ: a row that was written long ago may be dated a little later than now.
        options = AuditOptions(settle=-timedelta(minutes=1))
        found = await audited(reader, options, clock=process.clock)
        wrong = tuple([each for each in found.findings if not self._is_true(each)])
        split = {each.fault.about for each in found.findings if each.fault.kind == SPLIT}
        untold = [
            f"split group {group} not told" for group in self._books.groups.split() if not split & {*group}
        ]
        return [*structs.replace(found, findings=wrong).problems(), *untold, *await _mend_nothing(client)]

    def _is_true(self, finding: Finding) -> bool:
        """Whether this finding is right: a compute that was restarted has lost its instances, and the audit must
        report them. After a reshape, it also reports what an administrator has moved to another host together with its provider.
        A member of an affinity group that could not follow the others is reported.
        """
        about = finding.fault.about
        if about is None:
            return False
        if finding.fault.kind == LOST:
            return not self._real_instances.running.get(about)
        if finding.fault.kind == SPLIT:
            return any(about in members for members in self._books.groups.split())
        return finding.fault.kind == AMOUNTS and self._books.is_torn(about)


async def _mend_nothing(client: Station) -> list[str]:
    """Send orders that mend to books that need none, as from an outdated audit. Returns what they did nevertheless."""
    counted = await answer_of(client, RecountBooks(), WriteAnswered)
    wrong = [] if counted.verdict == Done() else [f"a recount was answered by {counted.verdict}"]
    page = await answer_of(client, AskInstances(state="active"), InstancesFound)
    for instance in page.instances[:1]:
        mend = MendConsumer(consumer=instance.id, seen=SeenConsumer(generation=10**6, attempt=1))
        ended = await answer_of(client, mend, WriteAnswered)
        if not isinstance(ended.verdict, ConsumerMoved):
            wrong.append(f"a mend out of date was answered by {ended.verdict}")
        row = MendInstance(seen=instance.sequence + 1, instance=instance)
        after = await answer_of(client, row, InstancesFound)
        if after.instances != (instance,):
            wrong.append(f"a mend out of date changed {instance} to {after.instances}")
    return wrong
