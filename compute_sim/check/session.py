"""One check of one compute: it orders, waits for the answers, compares them with what the rules say, and remembers what it has
built, so that nothing is left.
"""

import asyncio
import random
import sys
import time
from collections.abc import Iterable, Sequence
from uuid import uuid4

import msgspec
from msgspec import Struct, structs

from bus.codec import encode
from bus.message import Envelope, Message, ProviderId
from bus.messages.build import Flavor, InstanceId
from bus.messages.cell import DestroyInstance, InstanceDestroyed
from bus.messages.host_modes import CheckHost, HostHolds
from bus.messages.hosts import HostFacts, HostsAlive, HostsReported
from bus.messages.placement import ReportedInventory, ReportInventory, ResourceAmount, Share
from compute_sim.check.orders import ANSWERS, Answer, ExpectedAttempts, HostUnderCheck, InstanceOrders, agrees
from compute_sim.check.wire import CannotCheck, Heard, Wire
from compute_sim.core.attempts import HostOrder, key_of


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


def host_named(wire: Wire, name: str) -> ProviderId | None:
    """The id of the host with this name or id, as soon as it has told of itself."""
    for heard in wire.heard:
        match heard.message:
            case HostsReported(hosts=hosts):
                for each in hosts:
                    if name in (each.name, str(each.id)):
                        return each.id
            case ReportInventory(root=root, providers=providers):
                if any(each.id == root and name in (each.name, str(root)) for each in providers):
                    return root
            case HostsAlive(hosts=alive):
                for id_ in alive:
                    if name == str(id_):
                        return id_
    return None


def names_heard(wire: Wire) -> set[str]:
    """The names or ids of the hosts that have told of themselves."""
    return {
        name
        for heard in wire.heard
        for name in (
            [each.name for each in heard.message.hosts]
            if isinstance(heard.message, HostsReported)
            else [*map(str, heard.message.hosts)]
            if isinstance(heard.message, HostsAlive)
            else []
        )
    }


def with_share(wire: Wire, host: HostUnderCheck) -> HostUnderCheck:
    """The host with a share for its flavor, from the inventories that it has reported last."""
    for heard in reversed(wire.heard):
        if isinstance(heard.message, ReportInventory) and heard.message.root == host.host:
            return structs.replace(host, share=share_for(host.flavor, heard.message))
    return host


# An order to destroy what is unknown is answered at once.
MUST_LIVE_S = 2.0
# The rules save instances by orders of this number.
_SAVES = 1


class RuleBroken(Exception):  # noqa: N818 - it is a result
    """The compute under check breaks a rule: what was sent, what was expected, and what came."""

    def __init__(self, sent: str, expected: str, came: str) -> None:
        super().__init__(f"sent {sent}; expected {expected}; came {came}")
        self.sent, self.expected, self.came = sent, expected, came


class CheckOptions(Struct, frozen=True):
    limit_s: float = 30.0
    beat_s_max: float = 30.0
    restart: str = ""


class CheckSession:
    def __init__(self, wire: Wire, host: HostUnderCheck, options: CheckOptions) -> None:
        self.wire, self.host, self.options = wire, host, options
        self.other: HostUnderCheck | None = None
        self._expected = ExpectedAttempts()
        # All that was the right answer about an attempt before. It may come again: everything may.
        self._past: dict[object, list[Answer]] = {}
        # Orders to destroy what no host should have.
        self.strays: list[DestroyInstance] = []
        self._numbers = iter(range(random.randrange(1_000_000, 900_000_000), 2_000_000_000))

    # The compute as it tells of itself

    def report(self, mark: int = 0) -> ReportInventory | None:
        """The last inventory that the host has reported, of what was heard from `mark` on."""
        reports = [
            each.message
            for each in self.wire.heard[mark:]
            if isinstance(each.message, ReportInventory) and each.message.root == self.host.host
        ]
        return reports[-1] if reports else None

    def facts(self) -> HostFacts | None:
        for heard in reversed(self.wire.heard):
            if isinstance(heard.message, HostsReported):
                for each in heard.message.hosts:
                    if each.id == self.host.host:
                        return each
        return None

    def beats(self) -> list[float]:
        """When the host was heard to live."""
        return [
            heard.at_s
            for heard in self.wire.heard
            if isinstance(heard.message, HostsAlive) and self.host.host in heard.message.hosts
        ]

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

    async def answered(self, order: HostOrder, limit_s: float | None = None) -> None:
        mark = len(self.wire.heard)
        expected = self.expect(order)
        await self.wire.send(order)
        await self.wait_for(order, expected, mark, limit_s)

    def expect(self, order: HostOrder) -> Answer:
        expected = self._expected.answer_to(order)
        self._past.setdefault(key_of(order), []).append(expected)
        return expected

    async def wait_for(
        self, order: HostOrder, expected: Answer, mark: int, limit_s: float | None = None
    ) -> None:
        """Wait for the answer. Others about this attempt that were right before are skipped, any other breaks the rule."""
        past = self._past[key_of(order)]
        limit_s = limit_s or self.options.limit_s

        def look() -> Answer | Heard | None:
            for heard in self.wire.heard[mark:]:
                if heard.refused and _names(heard, order):
                    return heard
                message = heard.message
                if not isinstance(message, ANSWERS) or _key(message) != key_of(order):
                    continue
                if agrees(message, expected):
                    return message
                if not any(agrees(message, each) for each in past):
                    return heard
            return None

        found = await self.wire.until(look, limit_s)
        if isinstance(found, ANSWERS):
            return
        came = str(found) if found is not None else self._what_came(order, mark, limit_s)
        raise RuleBroken(as_text(order), as_text(expected), came)

    def _what_came(self, order: HostOrder, mark: int, limit_s: float) -> str:
        about = [str(each) for each in self.wire.heard[mark:] if _names(each, order)]
        return " and ".join(about) or f"nothing in {limit_s:g} s"

    async def dead_letter(self, line: bytes, mark: int) -> bool:
        """Wait for a dead letter with this line in it."""

        def look() -> bool | None:
            letters = (each.line for each in self.wire.heard[mark:] if each.exchange == "moor.dead")
            return any(line in each for each in letters) or None

        return bool(await self.wire.until(look, self.options.limit_s))

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

        def look() -> HostHolds | None:
            for each in self.wire.heard[mark:]:
                message = each.message
                if isinstance(message, HostHolds) and not each.refused and message.number == question.number:
                    return message
            return None

        page = await self.wire.until(look, self.options.limit_s)
        if page is None:
            mine = [str(each) for each in self.wire.heard[mark:] if isinstance(each.message, HostHolds)]
            came = " and ".join(mine) or f"nothing in {self.options.limit_s:g} s"
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
        of = self.instance()
        mark = len(self.wire.heard)
        await self.wire.send(of.destroy())

        def look() -> bool | None:
            return any(_names(each, of.destroy()) for each in self.wire.heard[mark:]) or None

        # One that does not know the attempt may not answer this order, but it lists what it has.
        if not await self.wire.until(look, MUST_LIVE_S):
            try:
                await self.holds()
            except RuleBroken as broken:
                raise RuleBroken(sent, "it goes on to answer", broken.came) from None

    # Restarts

    async def restart(self) -> None:
        """Run the command that restarts the compute, and wait until the host is heard again."""
        await run_command(self.options.restart, self.options.limit_s)
        since_s = time.monotonic()

        def look() -> bool | None:
            return any(each.at_s >= since_s and self._tells(each.message) for each in self.wire.heard) or None

        if not await self.wire.until(look, self.options.limit_s):
            limit = f"nothing in {self.options.limit_s:g} s"
            raise RuleBroken(self.options.restart, "the host is heard again", limit)

    def _tells(self, message: Message | None) -> bool:
        match message:
            case HostsAlive(hosts=hosts):
                return self.host.host in hosts
            case ReportInventory(root=host) | HostHolds(host=host):
                return host == self.host.host
            case _:
                return False

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

        def are_gone() -> bool | None:
            for each in self.wire.heard[mark:]:
                if isinstance(each.message, InstanceDestroyed):
                    missing.pop(_key(each.message), None)
            return True if not missing else None

        await self.wire.until(are_gone, self.options.limit_s)
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
    except (msgspec.DecodeError, KeyError, TypeError):
        return False
    return bool(said == str(order.instance))
