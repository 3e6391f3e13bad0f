"""Reports and heartbeats of hosts, as computes and bare-metal daemons send them."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import UUID

import pytest

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.hosts import HostsAlive, HostsReported
from bus.workers.publisher import Outgoing, Publisher
from bus.workers.station import BEATS_PER_MESSAGE, HostAnnouncer, Station
from engine.hosts import HostFacts
from engine.inventories import CellName, ProviderId
from kit.errors import Undeliverable
from moor.client.bus_client import running
from tests.contracts.stage import until

pytestmark = pytest.mark.asyncio

HOSTS = [ProviderId(UUID(int=number)) for number in range(1, BEATS_PER_MESSAGE + 2)]
FIRST, SECOND = HOSTS[:2]


class FailingPublisher(Publisher):
    """Notes what it would publish. The first `failures` messages fail, each after `meanwhile` was called."""

    def __init__(self, failures: int) -> None:
        station = Station(MemoryBroker().as_user(), "a-test")
        super().__init__(station.consuming, station.settings, "a-test")
        self.failures = failures
        self.said: list[Message] = []

    def meanwhile(self) -> None:
        """To be replaced by a test."""

    def send_all(self, outgoing: Sequence[Outgoing], _kept: object = ()) -> "asyncio.Future[None]":
        self.said += [each.message for each in outgoing]
        done = asyncio.get_running_loop().create_future()
        if self.failures:
            self.failures -= 1
            self.meanwhile()
            done.set_exception(Undeliverable("no queue takes it"))
        else:
            done.set_result(None)
        return done


class NamedHosts(HostAnnouncer[str]):
    """Reports each host with the name with which it was touched."""

    def __init__(self, publisher: Publisher, living: Iterable[ProviderId] = ()) -> None:
        super().__init__("report", "beat", publisher, every_s=0.01, beat_s=0.01)
        self._living = living

    async def reports(self, touched: Mapping[ProviderId, str]) -> Iterator[HostsReported]:
        facts = tuple(HostFacts(id=id_, name=name) for id_, name in touched.items())
        return iter((HostsReported(cell="c1", hosts=facts),) if facts else ())

    def alive(self) -> Mapping[CellName, Iterable[ProviderId]]:
        return {"c1": self._living}


async def test_hosts_whose_report_fails_are_reported_again_with_what_is_known_since() -> None:
    publisher = FailingPublisher(failures=1)
    announcer = NamedHosts(publisher)
    announcer.touched |= {FIRST: "old", SECOND: "same"}
    publisher.meanwhile = lambda: announcer.touched.update({FIRST: "new"})  # type: ignore[method-assign]

    async with running((announcer,)):
        await until(lambda: reported(publisher.said) == 2, "they are reported again")

    last = publisher.said[-1]
    assert isinstance(last, HostsReported)
    assert {each.id: each.name for each in last.hosts} == {FIRST: "new", SECOND: "same"}


async def test_a_report_that_was_taken_is_not_repeated() -> None:
    publisher = FailingPublisher(failures=0)
    announcer = NamedHosts(publisher, living=(FIRST,))
    announcer.touched[FIRST] = "h1"

    async with running((announcer,)):
        await until(lambda: len(beats(publisher.said)) > 1, "several intervals have passed")

    assert reported(publisher.said) == 1


async def test_heartbeats_of_many_hosts_are_few_messages() -> None:
    publisher = FailingPublisher(failures=0)

    async with running((NamedHosts(publisher, living=HOSTS),)):
        await until(lambda: len(beats(publisher.said)) > 1, "they are sent")

    first, second = beats(publisher.said)[:2]
    assert (first.hosts, second.hosts) == (tuple(HOSTS[:BEATS_PER_MESSAGE]), tuple(HOSTS[BEATS_PER_MESSAGE:]))


def beats(said: Iterable[Message]) -> list[HostsAlive]:
    return [each for each in said if isinstance(each, HostsAlive)]


def reported(said: Iterable[Message]) -> int:
    return sum(isinstance(each, HostsReported) for each in said)
