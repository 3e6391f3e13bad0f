"""A compute with aio-pika alone: it has hosts of a cell, and each instance on them is a process of this machine.

Take this one to see a whole cloud build, move and audit something. own_compute_pika.py is shorter, keeps its attempts in a file, and
is the one to begin your own with.

    python own_compute.py amqp://moor-compute-CELL:PASSWORD@BROKER/ CELL HOST [HOST ...]

It runs as the computes of the cell, and takes the place of `moor run compute --cell CELL`: a cell has one such program.
docs/tutorials/your-own-compute.md explains it. Instances are kept in memory, and end with the program.
"""

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import aio_pika

BEAT_S = 5
VCPUS, MEMORY_MB, DISK_GB = 8, 16384, 100
ORDERS = ("spawn", "receive", "stop", "start", "respawn", "destroy")
Message = dict[str, Any]


class Attempt:
    """One try to have an instance on a host. `rank` is the last order to stop, to start or to rebuild that it obeyed."""

    def __init__(self) -> None:
        self.state = "gone"
        self.rank = self.rebuild = 0
        self.saved = ""
        self.process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        if self.process is None:
            # It waits for its input, which ends with this program.
            self.process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
        self.state = "runs"

    async def end(self, state: str) -> None:
        if self.process is not None:
            self.process.kill()
            await self.process.wait()
            self.process = None
        self.state = state

    def take_over(self, source: "Attempt") -> None:
        self.process, source.process, source.state = source.process, None, "stopped"

    def answer(self) -> Message:
        """What the attempt is now: the answer to an order that changed it, and to one that is repeated or late."""
        if self.state == "gone":
            return {"type": "destroyed"}
        if self.rebuild:
            return {"type": "redeployed", "number": self.rebuild}
        number = self.rank // 2
        return {"type": "spawned", "number": number} if self.state == "runs" else self._stopped(number)

    def _stopped(self, number: int) -> Message:
        return {"type": "stopped", "number": number, "saved": self.saved}


class Compute:
    def __init__(self, cell: str, names: list[str]) -> None:
        self.cell = cell
        # The id of a host is that of its root provider, for ever: here it follows from the names.
        self.hosts = {str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.{cell}")): name for name in names}
        self._attempts: dict[tuple[str, str, int], Attempt] = {}

    def on(self, host: str) -> list[tuple[str, int]]:
        """What is on a host, in the order of ids: instances with their attempts."""
        known = self._attempts.items()
        return sorted((key[1], key[2]) for key, each in known if key[0] == host and each.state != "gone")

    async def obey(self, order: Message) -> Message:
        """Do what the conductor orders, and return the answer. A repeated or late order changes nothing."""
        if order["type"] == "host.check":
            held = [each for each in self.on(order["host"]) if each[0] > (order.get("after") or "")]
            return {
                "type": "host.holds",
                "attempts": held,
                "number": order["number"],
                "after": order.get("after"),
            }
        if order["type"] not in ORDERS:
            raise ValueError(f"unknown order {order['type']!r}")
        key = (order["host"], order["instance"], order["attempt"])
        known = self._attempts.get(key)
        match order["type"]:
            case "destroy":
                known = self._attempts.setdefault(key, Attempt())
                await known.end("gone")
                known.rebuild = 0
            case "spawn" | "receive" if known is None:
                return await self._begun(order, key)
            case "stop" | "start" | "respawn" if known is None or known.state == "gone":
                return refused(order, "the host has nothing of it")
            case "stop" | "start" | "respawn" if known is not None:
                await carry_out(order, known)
        assert known is not None
        return known.answer()

    async def _begun(self, order: Message, key: tuple[str, str, int]) -> Message:
        attempt = Attempt()
        if order["host"] not in self.hosts:
            return {"type": "spawn.failed", "reason": "this compute has no such host"}
        if order["type"] == "receive":
            source = self._attempts.get((order["source"], order["instance"], order["source_attempt"]))
            if source is None or source.state != ("runs" if order.get("live") else "stopped"):
                return {"type": "spawn.failed", "reason": "the source does not have it"}
            attempt.take_over(source)
        self._attempts[key] = attempt
        if order.get("stopped"):
            # A stopped instance that moves: it is here, and does not run.
            await attempt.end("stopped")
        else:
            await attempt.run()
        return attempt.answer()

    async def end(self) -> None:
        for each in self._attempts.values():
            await each.end("gone")


async def carry_out(order: Message, attempt: Attempt) -> None:
    rank = 2 * order["number"] + (order["type"] == "start")
    saves = order.get("save_as", "")
    if rank < attempt.rank or (rank == attempt.rank and not saves):
        return  # Orders overtake each other: the later one counts.
    attempt.rank, attempt.rebuild = rank, 0
    if order["type"] == "stop":
        await attempt.end("stopped")
        attempt.saved = saves  # A real host uploads the disk now.
        return
    if order["type"] == "respawn":
        await attempt.end("stopped")  # And destroys the disk.
        attempt.rebuild = order["number"]
    attempt.saved = ""
    await attempt.run()


def refused(order: Message, reason: str) -> Message:
    number = order["number"]
    match order["type"]:
        case "stop":
            return {"type": "stopped", "number": number, "failure": reason}
        case "respawn":
            return {"type": "redeployed", "number": number, "failure": reason, "is_active": False}
    return {"type": "spawn.failed", "number": number, "reason": reason}


class Bus:
    """Publishes what the broker confirms, as the user of the URL."""

    def __init__(self, channel: aio_pika.abc.AbstractChannel, user: str, cell: str) -> None:
        self.channel, self._user, self.cell = channel, user, cell

    async def say(self, exchange: str, message: Message, key: str = "", cause: str = "") -> None:
        body = {"message": message, "id": str(uuid.uuid4()), "cause": cause}
        parcel = aio_pika.Message(
            json.dumps(body).encode(),
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            user_id=self._user,
        )
        to = await self.channel.get_exchange(exchange, ensure=False)
        # Nobody needs to listen to events; all else must reach a queue.
        key = key or f"{message['type']}.{self.cell}"
        await to.publish(parcel, key, mandatory=exchange != "moor.events")

    async def serve(self, queue: str, handle: Callable[[Message, str], Awaitable[None]]) -> None:
        """Handle the messages of this queue, one after another, each with its `reply_to`. A parcel is acknowledged when all
        of its messages are handled, and what this program cannot read becomes a dead letter.
        """
        source = await self.channel.get_queue(queue, ensure=False)
        async with source.iterator() as parcels:
            async for parcel in parcels:
                is_read = True
                for line in parcel.body.splitlines():  # several messages may share one parcel
                    try:
                        await handle(json.loads(line), parcel.reply_to or "")
                    except (KeyError, TypeError, ValueError) as wrong:
                        print("cannot read", line, repr(wrong), file=sys.stderr, flush=True)
                        is_read = False
                await (parcel.ack() if is_read else parcel.reject(requeue=False))


async def introduce(bus: Bus, compute: Compute) -> None:
    """What each host has to give, what it is, and what is on it from an earlier time: here nothing."""
    inventories = {
        "VCPU": {"total": VCPUS, "allocation_ratio": 4.0},
        "MEMORY_MB": {"total": MEMORY_MB},
        "DISK_GB": {"total": DISK_GB},
    }
    for host, name in compute.hosts.items():
        tree = {"id": host, "name": name, "inventories": inventories, "traits": ["COMPUTE_NODE"]}
        report = {"type": "inventory.report", "cell": bus.cell, "root": host, "providers": [tree]}
        await bus.say("moor.placement", report)
        holds = {"type": "host.holds", "cell": bus.cell, "host": host, "number": 0}
        await bus.say(f"moor.cell.{bus.cell}", holds)
    await tell_facts(bus, compute)


async def tell_facts(bus: Bus, compute: Compute) -> None:
    facts = [
        {"id": host, "name": name, "hypervisor_type": "sleep", "instances": len(compute.on(host))}
        for host, name in compute.hosts.items()
    ]
    number = time.time_ns()  # the latest report of each host counts
    await bus.say("moor.events", {"type": "host.state", "cell": bus.cell, "hosts": facts, "sequence": number})


async def beat(bus: Bus, compute: Compute) -> None:
    """A host without a heartbeat for a minute is down."""
    while True:
        await tell_facts(bus, compute)
        await bus.say("moor.events", {"type": "host.beat", "cell": bus.cell, "hosts": [*compute.hosts]})
        await asyncio.sleep(BEAT_S)


async def obey(bus: Bus, compute: Compute) -> None:
    async def handle(envelope: Message, _: str) -> None:
        order = envelope["message"]
        about = {key: order[key] for key in ("cell", "host", "instance", "attempt") if key in order}
        answer = await compute.obey(order)
        print(order["type"], order.get("instance", ""), "->", answer["type"], flush=True)
        await bus.say(f"moor.cell.{bus.cell}", {**about, **answer}, cause=envelope.get("id", ""))

    await bus.serve(f"compute.{bus.cell}.work", handle)


async def answer_audits(bus: Bus, compute: Compute) -> None:
    """`moor audit` asks what the hosts really have, and compares it with the books."""

    async def handle(envelope: Message, reply_to: str) -> None:
        question = envelope["message"]
        after, named = question.get("after") or "", question.get("instances", [])
        has = sorted(
            (instance, host, attempt)
            for host in compute.hosts
            for instance, attempt in compute.on(host)
            if instance > after and (not named or instance in named)
        )
        page = has[: question.get("limit", 1000)]
        asked = [host for host in question.get("hosts", []) if host in compute.hosts]
        found = {"type": "host.books.found", "entries": page, "asked": asked}
        if len(has) > len(page):
            found["next"] = page[-1][0]
        await bus.say("moor.reply", found, key=reply_to, cause=envelope.get("id", ""))

    await bus.serve(f"compute.{bus.cell}.questions", handle)


async def main(url: str, cell: str, *names: str) -> None:
    compute = Compute(cell, list(names))
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        await channel.set_qos(prefetch_count=20)
        bus = Bus(channel, unquote(urlsplit(url).username or "guest"), cell)
        try:
            await introduce(bus, compute)
            print("ready:", *compute.hosts.values(), flush=True)
            async with asyncio.TaskGroup() as tasks:
                for work in (beat, obey, answer_audits):
                    tasks.create_task(work(bus, compute))
        finally:
            await compute.end()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
