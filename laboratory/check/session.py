"""One check of one compute: it orders, waits for the answers, compares them with what the rules say, and remembers what it has
built, so that nothing is left.
"""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct, structs

from bus.addresses import broker_at
from bus.broker import Connection, Consuming, Delivery, Origin, Publishing, Receipt
from bus.codec import CODEC, encode, lines_of
from bus.message import LINES, PLAIN, Envelope, Message, Parcel, type_of
from bus.messages.cell import DestroyInstance, InstanceDestroyed, InstanceMessage
from bus.messages.hosts import CheckHost, HostHolds, HostsAlive, HostsNotHere, HostsReported
from bus.messages.placement import ReportInventory
from bus.topology import CELL, DEAD, EVENTS, PLACEMENT, Binding, Objects, Queue, QueueKind, in_cell
from bus.unreadable import Unreadable
from bus.workers.authority import BrokerFacts, broker_facts_of, judge, judge_parcel, origin_of
from bus.workers.dead_letters import open_dead_letters
from compute_sim.core.attempts import HostOrder, key_of
from engine.flavors import Flavor, InstanceId
from engine.inventories import ProviderId, ReportedInventory, ResourceAmount, Share
from kit.clock import now
from kit.errors import UNREADABLE, Failure, Interrupted
from laboratory.check.orders import ANSWERS, Answer, ExpectedAttempts, HostUnderCheck, InstanceOrders, agrees

T = TypeVar("T")

# What the API level sends to a conductor. A cell that gets such orders is in use.
OF_THE_API_LEVEL = frozenset({"place", "remove", "rebuild", "move", "settle", "alternates", "host.mode"})
PREFETCH = 10_000
LETTERS_MAX = 2_000
# The conductor's messages that the cell had before: so long they may take to arrive.
FIRST_LOOK_S = 10.0


class CannotCheck(Failure):
    """The check cannot run, or cannot go on."""


class Heard(Struct, frozen=True):
    """One message of the compute, or a line that nobody can read. `refused` says why a worker would not take it."""

    at_s: float
    exchange: str
    key: str
    line: bytes
    message: Message | None = None
    refused: str = ""

    def is_dead_letter_of(self, line: bytes) -> bool:
        return self.exchange == DEAD and line in self.line

    def __str__(self) -> str:
        text = self.line.decode(errors="replace")
        return f"{text} ({self.refused})" if self.refused else text


class Wire:
    """The bus as the check uses it: it sends a conductor's orders, and hears all that the compute publishes.

    It reads the conductor's own queue, so it takes the conductor's place. Messages there that are not about its own orders are held, and
    go back into the queue at its end; they belong to the cell.
    """

    def __init__(self, cell: str, publishing: Publishing, watching: Connection, facts: BrokerFacts) -> None:
        self.cell = cell
        self.heard: list[Heard] = []
        # Those about which the check has sent orders, and the numbers of its questions to hosts.
        self.instances = set[InstanceId]()
        self.questions: set[int] = set()
        self.sent: set[bytes] = set()
        self._publishing, self._watching, self._facts = publishing, watching, facts
        self.in_use: set[str] = set()
        self._news = asyncio.Event()

    # Sending

    async def send(self, *messages: Message) -> list[bytes]:
        """Send these orders, all in one parcel under the key of the first; returns their bytes."""
        lines = [encode(Envelope(message=each, id=f"check-{uuid4()}", sent_at=now())) for each in messages]
        await self.send_lines(lines, type_of(messages[0]))
        return lines

    async def send_lines(self, lines: Sequence[bytes], type_: str) -> None:
        body = b"\n".join(lines)
        self.sent |= {body, *lines}
        receipt = await self._publishing.publish(
            Parcel(
                exchange=in_cell(CELL, self.cell),
                routing_key=f"{type_}.{self.cell}",
                body=body,
                content_type=PLAIN if len(lines) == 1 else LINES,
                mandatory=True,
            )
        )
        if receipt is not Receipt.CONFIRMED:
            raise CannotCheck(f"the order {type_!r} was not stored: the broker says {receipt.value}")

    # Hearing

    async def until(self, pick: Callable[[Heard], T | None], limit_s: float, mark: int = 0) -> T | None:
        """What `pick` finds first in what is heard from `mark` on, each once; None if it has found nothing after so long."""
        until_s = time.monotonic() + limit_s
        while True:
            if self.in_use:
                orders = ", ".join(sorted(self.in_use))
                raise CannotCheck(
                    f"conductor.{self.cell}.work has orders of the API level ({orders}): cell {self.cell!r} is in use; "
                    "check a compute in a cell of its own"
                )
            news, mark = self.heard[mark:], len(self.heard)
            if (
                found := next((found for each in news if (found := pick(each)) is not None), None)
            ) is not None:
                return found
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return None
            self._news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), left_s)

    async def hear(self, consuming: Consuming, *, as_conductor: bool = False) -> None:
        """The conductor's messages that are not about the check's own orders are not acknowledged: they go back."""
        with suppress(Interrupted):
            while True:
                for delivery in await consuming.receive():
                    heard = self._read(delivery)
                    self.heard += heard
                    if not as_conductor or all(map(self._is_ours, heard)):
                        await consuming.acknowledge(delivery.tag)
                    kinds = {type_of(each.message) for each in heard if each.message is not None}
                    self.in_use |= kinds & OF_THE_API_LEVEL
                self._news.set()

    def _is_ours(self, heard: Heard) -> bool:
        match heard.message:
            case InstanceMessage(instance=instance):
                return instance in self.instances
            case HostHolds(number=number):
                return number in self.questions
            case HostsNotHere():
                # Only the check asks for hosts that are not there.
                return True
            case _:
                return False

    def _read(self, delivery: Delivery) -> list[Heard]:
        parcel, at_s = delivery.parcel, time.monotonic()
        if parcel.exchange == DEAD:
            return [Heard(at_s, DEAD, parcel.routing_key, parcel.body)]
        origin = origin_of(delivery, self._facts)
        lines = lines_of(parcel)
        if isinstance(lines, Unreadable):
            return [Heard(at_s, parcel.exchange, parcel.routing_key, parcel.body, refused=lines.reason)]
        return [self._one(origin, line, at_s) for line in lines]

    def _one(self, origin: Origin, line: bytes, at_s: float) -> Heard:
        envelope = CODEC.decode(line)
        if not isinstance(envelope, Envelope):
            why = envelope.reason if isinstance(envelope, Unreadable) else "its version is not known yet"
            return Heard(at_s, origin.exchange, origin.key, line, refused=why)
        message = envelope.message
        refused = judge_parcel(origin, self._facts) or judge(message, origin, self._facts)
        return Heard(at_s, origin.exchange, origin.key, line, message, refused.reason if refused else "")

    # The end

    async def drop_dead_letters(self) -> None:
        """Remove the dead letters of which this check is the cause, and no others."""
        async with open_dead_letters(self._watching, LETTERS_MAX) as opened:
            ours = [tag for tag, letter in opened.letters.items() if letter.parcel.body in self.sent]
            if ours:
                await opened.drop(ours)


@asynccontextmanager
async def opened_wire(url: str, watch_url: str, cell: str) -> AsyncIterator[Wire]:
    """A wire as the conductor of this cell. The user of `watch_url` may bind queues to all exchanges, and read dead letters."""
    async with AsyncExitStack() as stack:
        broker = broker_at(url)
        connection = await broker.connect()
        stack.push_async_callback(connection.close)
        watching = await broker_at(watch_url).connect()
        stack.push_async_callback(watching.close)
        work = f"conductor.{cell}.work"
        if (others := await connection.consumers(work)) > 0:
            raise CannotCheck(
                f"{others} conductors consume {work}: cell {cell!r} is in use. Check a compute in a cell without a "
                "conductor, or stop the conductors first"
            )
        wire = Wire(cell, await connection.open_publishing(), watching, broker_facts_of(broker.user))
        queue = _watch_queue(cell)
        await watching.declare(Objects(queues=(queue,)))
        heard = await watching.open_consuming(queue.name, PREFETCH)
        depth = await connection.depth(work)
        orders = await connection.open_consuming(work, PREFETCH)
        stack.push_async_callback(orders.close)
        tasks = [
            asyncio.create_task(wire.hear(heard)),
            asyncio.create_task(wire.hear(orders, as_conductor=True)),
        ]
        stack.callback(lambda: [task.cancel() for task in tasks])
        await wire.until(lambda _: len(wire.heard) >= depth or None, FIRST_LOOK_S if depth else 0)
        yield wire


def _watch_queue(cell: str) -> Queue:
    """It ends with its connection."""
    bindings = (
        Binding(PLACEMENT, f"inventory.report.{cell}"),
        Binding(EVENTS, f"host.state.{cell}"),
        Binding(EVENTS, f"host.beat.{cell}"),
        Binding(DEAD, f"compute.{cell}.work"),
    )
    return Queue(f"answers.check.{cell}", QueueKind.ANSWERS, bindings)


async def run_command(command: str, limit_s: float) -> None:
    """Run the command that restarts the compute; its output goes to the standard error."""
    process = await asyncio.create_subprocess_shell(
        command, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr
    )
    try:
        code = await asyncio.wait_for(process.wait(), limit_s)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise CannotCheck(
            f"the command {command!r} still runs after {limit_s:g} s: it must restart the compute and end"
        ) from None
    if code:
        raise CannotCheck(f"the command {command!r} ended with exit code {code}")


# Each amount of a flavor is taken from the first of these classes that the host has.
CLASSES = (("vcpus", ("VCPU", "PCPU")), ("ram_mb", ("MEMORY_MB",)), ("root_gb", ("DISK_GB",)))


def share_for(flavor: Flavor, report: ReportInventory) -> Share | None:
    """None if the host has reported nothing of which the flavor takes something."""
    amounts = tuple(
        found
        for field, classes in CLASSES
        if (wanted := getattr(flavor, field)) > 0
        and (found := _first(_inventories(report), classes, wanted)) is not None
    )
    return Share(host=report.root, amounts=amounts) if amounts else None


def impossible_share(share: Share) -> Share:
    """As much of each class as no host has."""
    return Share(
        host=share.host,
        amounts=tuple(
            ResourceAmount(provider=each.provider, resource=each.resource, amount=2**31 - 1)
            for each in share.amounts
        ),
    )


def _inventories(report: ReportInventory) -> list[tuple[ProviderId, str, ReportedInventory]]:
    return [
        (provider.id, resource, inventory)
        for provider in report.providers
        for resource, inventory in (provider.inventories or {}).items()
    ]


def _first(
    inventories: Iterable[tuple[ProviderId, str, ReportedInventory]], classes: tuple[str, ...], wanted: int
) -> ResourceAmount | None:
    for provider, resource, inventory in inventories:
        step = inventory.step_size
        amount = max(-(-wanted // step) * step, inventory.min_unit)
        if resource in classes and amount <= inventory.total - inventory.reserved:
            return ResourceAmount(provider=provider, resource=resource, amount=amount)
    return None


def hosts_of(heard: Heard) -> dict[ProviderId, str]:
    """The hosts that this message tells of, each with its name, or with its id if it tells no name."""
    match heard.message:
        case HostsReported(hosts=hosts):
            return {each.id: each.name for each in hosts}
        case ReportInventory(root=root, providers=providers):
            return {each.id: each.name or str(root) for each in providers if each.id == root}
        case HostsAlive(hosts=alive):
            return {id_: str(id_) for id_ in alive}
        case _:
            return {}


def report_of(heard: Heard, host: ProviderId) -> ReportInventory | None:
    """The inventory of this host, if this message reports it."""
    message = heard.message
    return message if isinstance(message, ReportInventory) and message.root == host else None


# An order to destroy what is unknown is answered at once.
MUST_LIVE_S = 2.0
# The rules save instances by orders of this number.
_SAVES = 1


class RuleBroken(Exception):  # noqa: N818 - it is a result
    """The compute under check breaks a rule: what was sent, what was expected, and what came."""

    def __init__(self, sent: str, expected: str, came: str) -> None:
        super().__init__(f"sent {sent}; expected {expected}; came {came}")
        self.sent, self.expected, self.came = sent, expected, came


class CheckSession:
    """Orders the compute's `host`, and waits at most `limit_s` for each answer; `restart` is the command that restarts the compute."""

    def __init__(
        self, wire: Wire, host: HostUnderCheck, limit_s: float, beat_s_max: float, restart: str
    ) -> None:
        self.wire, self.host = wire, host
        self.limit_s, self.beat_s_max, self.restart_command = limit_s, beat_s_max, restart
        self.other: HostUnderCheck | None = None
        self._expected = ExpectedAttempts()
        # All that was the right answer about an attempt before. It may come again: everything may.
        self._past: dict[object, list[Answer]] = {}
        # Orders to destroy what no host should have.
        self.strays: list[DestroyInstance] = []
        self._numbers = iter(range(random.randrange(1_000_000, 900_000_000), 2_000_000_000))

    def report(self, host: ProviderId | None = None) -> ReportInventory | None:
        """The last inventory that the host has reported."""
        told = (report_of(each, host or self.host.host) for each in reversed(self.wire.heard))
        return next(filter(None, told), None)

    def with_share(self, host: HostUnderCheck) -> HostUnderCheck:
        """The host with a share for its flavor, from the inventories that it has reported last."""
        report = self.report(host.host)
        return structs.replace(host, share=share_for(host.flavor, report)) if report else host

    async def until(self, pick: Callable[[Heard], T | None], mark: int) -> T | None:
        return await self.wire.until(pick, self.limit_s, mark)

    async def after(
        self, order: Message, pick: Callable[[Heard], T | None], limit_s: float | None = None
    ) -> T | None:
        """Send this order, and return what `pick` finds in what is heard from then on."""
        mark = len(self.wire.heard)
        await self.wire.send(order)
        return await self.wire.until(pick, limit_s or self.limit_s, mark)

    # Orders

    def instance(self, on: HostUnderCheck | None = None) -> InstanceOrders:
        """The orders about a new instance."""
        id_ = InstanceId(uuid4())
        self.wire.instances.add(id_)
        return InstanceOrders(on or self.host, id_)

    async def obeyed(self, *orders: HostOrder) -> None:
        """Send each order when the one before is answered; each gets the answer that the rules say."""
        for order in orders:
            await self.answered(order)

    async def answered(self, *orders: HostOrder, limit_s: float | None = None) -> None:
        """Send these orders at once; the last one gets the answer that the rules say."""
        mark = len(self.wire.heard)
        expected = [self.expect(order) for order in orders]
        for order in orders:
            await self.wire.send(order)
        await self.wait_for(orders[-1], expected[-1], mark, limit_s)

    def expect(self, order: HostOrder) -> Answer:
        expected = self._expected.answer_to(order)
        self._past.setdefault(key_of(order), []).append(expected)
        return expected

    async def wait_for(
        self, order: HostOrder, expected: Answer, mark: int, limit_s: float | None = None
    ) -> None:
        """Wait for the answer. Others about this attempt that were right before are skipped, any other breaks the rule."""
        past = self._past[key_of(order)]
        limit_s = limit_s or self.limit_s

        def look(heard: Heard) -> Answer | Heard | None:
            if heard.refused and _names(heard, order):
                return heard
            message = heard.message
            if not isinstance(message, ANSWERS) or _key(message) != key_of(order):
                return None
            if agrees(message, expected):
                return message
            return None if any(agrees(message, each) for each in past) else heard

        found = await self.wire.until(look, limit_s, mark)
        if isinstance(found, ANSWERS):
            return
        came = str(found) if found is not None else self._what_came(order, mark, limit_s)
        raise RuleBroken(as_text(order), as_text(expected), came)

    def _what_came(self, order: HostOrder, mark: int, limit_s: float) -> str:
        about = [str(each) for each in self.wire.heard[mark:] if _names(each, order)]
        return " and ".join(about) or f"nothing in {limit_s:g} s"

    async def holds(self, after: InstanceId | None = None) -> list[tuple[InstanceId, int]]:
        """The attempts that the host lists: all pages behind this instance."""
        found: list[tuple[InstanceId, int]] = []
        while True:
            question = CheckHost(
                cell=self.host.cell, host=self.host.host, number=next(self._numbers), after=after
            )
            page = await self.page(question)
            found += [(each.instance, each.attempt) for each in page.attempts]
            if page.next is None:
                return found
            if after is not None and page.next <= after:
                raise RuleBroken(as_text(question), f"a `next` behind {after}", as_text(page))
            after = page.next

    async def page(self, question: CheckHost) -> HostHolds:
        self.wire.questions.add(question.number)
        mark = len(self.wire.heard)
        await self.wire.send(question)

        def look(heard: Heard) -> HostHolds | None:
            match heard.message:
                case HostHolds(number=question.number) as page if not heard.refused:
                    return page
                case _:
                    return None

        page = await self.until(look, mark)
        if page is None:
            mine = [str(each) for each in self.wire.heard[mark:] if isinstance(each.message, HostHolds)]
            came = " and ".join(mine) or f"nothing in {self.limit_s:g} s"
            raise RuleBroken(as_text(question), f"host.holds with the number {question.number}", came)
        if page.host != question.host or page.after != question.after:
            raise RuleBroken(as_text(question), "host.holds with the same host and `after`", as_text(page))
        return page

    async def must_hold(self, of: InstanceOrders, *attempts: int) -> None:
        """The host lists exactly these attempts of the instance."""
        listed = sorted(attempt for instance, attempt in await self.holds() if instance == of.instance)
        if listed != sorted(attempts):
            wanted = f"host.holds with the attempts {[*attempts]} of {of.instance}"
            raise RuleBroken("host.check", wanted, f"the attempts {listed}")

    async def must_live(self, sent: str) -> None:
        """The compute still answers orders, whatever it answers."""
        order = self.instance().destroy()
        # One that does not know the attempt may not answer this order, but it lists what it has.
        if not await self.after(order, lambda heard: _names(heard, order) or None, MUST_LIVE_S):
            try:
                await self.holds()
            except RuleBroken as broken:
                raise RuleBroken(sent, "it goes on to answer", broken.came) from None

    # Restarts

    async def restart(self) -> None:
        """Run the command that restarts the compute, and wait until the host is heard again."""
        await run_command(self.restart_command, self.limit_s)
        if not await self.until(self._tells, len(self.wire.heard)):
            limit = f"nothing in {self.limit_s:g} s"
            raise RuleBroken(self.restart_command, "the host is heard again", limit)

    def _tells(self, heard: Heard) -> bool | None:
        match heard.message:
            case HostsAlive(hosts=hosts):
                return self.host.host in hosts or None
            case ReportInventory(root=host) | HostHolds(host=host):
                return host == self.host.host or None
            case _:
                return None

    # The end

    async def clean(self) -> list[str]:
        """Destroy all attempts that were ordered, and say of which no host has answered that nothing is left."""
        orders = [
            DestroyInstance(
                cell=each.cell,
                host=each.host,
                instance=each.instance,
                attempt=each.attempt,
                saved_until=_SAVES,
            )
            for each in self._expected.all()
        ]
        self._expected = ExpectedAttempts()
        mark = len(self.wire.heard)
        for order in (*orders, *self.strays):
            await self.wire.send(order)
        self.strays.clear()
        missing = {key_of(order): order for order in orders}

        def are_gone(heard: Heard) -> bool | None:
            if isinstance(heard.message, InstanceDestroyed):
                missing.pop(_key(heard.message), None)
            return not missing or None

        if missing:
            await self.until(are_gone, mark)
        return [
            f"attempt {each.attempt} of {each.instance} on host {each.host}: its destroy was not answered"
            for each in missing.values()
        ]


def as_text(message: Message | Sequence[Message]) -> str:
    """A message as it goes over the wire, without its envelope."""
    if isinstance(message, Message):
        return encode(Envelope(message=message)).decode().removeprefix('{"message":').removesuffix("}")
    return " and ".join(map(as_text, message))


def _key(answer: Answer) -> tuple[int, int, int]:
    return (answer.host.int, answer.instance.int, answer.attempt)


def _names(heard: Heard, order: HostOrder) -> bool:
    """Is this, as far as it can be read, about the instance of the order?"""
    try:
        said = msgspec.json.decode(heard.line)["message"]["instance"]
    except UNREADABLE:
        return False
    return bool(said == str(order.instance))
