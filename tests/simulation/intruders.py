"""Those who mean harm, or whose programs are broken: bytes that are no messages, by every queue, and messages by which a
user would act with the authority of another. Each is published as a user of the topology, whose rights the broker judges.

What they say must do no harm, which the other checkers see; and each letter that is made of it must tell what was wrong.
"""

import asyncio
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import Context
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol
from uuid import UUID

import msgspec
from msgspec import Struct, structs

from bus import headers
from bus.broker import LINES, PARCEL_BYTES_MAX, PLAIN, Interrupted, Parcel
from bus.codec import CODEC, encode, known_messages
from bus.dead_letters import DeadLetter
from bus.memory import MemoryBroker
from bus.message import ConsumerId, Envelope, Message, ProviderId, type_of
from bus.messages.administration import AskUsages
from bus.messages.build import (
    BuildInstance,
    DeleteInstance,
    Flavor,
    InstanceDeleted,
    InstanceId,
    InstanceState,
    RequestId,
)
from bus.messages.cell import DestroyInstance, RemoveFromCell
from bus.messages.hosts import HostFacts, HostsReported, SetHost
from bus.messages.placement import ReleaseClaim, ReportInventory
from bus.permissions import Rights
from bus.topology import REPLY, Address, Application, Kind, address_of, user_of
from tests.simulation.faults import CURSED, FORGERIES, Hostile
from tests.simulation.findings import Findings
from tests.simulation.plan import CELLS
from tests.unit.examples import EXAMPLES

CLIENT = Application("people", admin=True)
# An application that speaks for a project of its own, of which nothing is.
RIVAL_PROJECT = "rival"
RIVAL = Application("rival", projects=(RIVAL_PROJECT,))
AUTHORITY = "nobody acts with another's authority"
MARK = "hostile-"
AT = datetime(2026, 1, 1, tzinfo=UTC)
NESTED_DEEP = 20_000
ANSWERS_GUESSED = 6


class Target(Struct, frozen=True):
    """An instance that is active, with what one must know to harm it."""

    instance: InstanceId
    request: RequestId
    cell: str
    host: ProviderId
    host_name: str
    attempt: int


class Seen(Protocol):
    """What an intruder has found out."""

    def targets(self) -> list[Target]: ...

    def answer_queues(self) -> list[str]:
        """Of schedulers, as they are read now."""

    def hear_next_question(self, tell: Callable[[Parcel], None]) -> None:
        """Of a scheduler, with its ids."""


# What is wrong with what a letter holds, as its reason must tell; None if a line is no message by itself and never read.
REASONS: Mapping[str, str] = {
    "not_utf8": r"(?i)utf-?8",
    "unknown_type": r"unknown message type 'no\.such'",
    "wrong_field": r"Expected|missing|nothing here reads",
    "nul": r"NUL",
    "deep": r"(?i)nested|deep|recursion",
    "truncated": r"(?i)truncated|malformed|json",
    "oversized": r"oversized",
    "among_good": r"(?i)malformed|json|truncated",
    CURSED: r"database: .*attempts, none is left|^came back",
}
# A message of each kind that a queue, a feed or an asker takes.
WAYS = (
    *("build.request", "instance.delete", "instance.query", "host.query", "instance.active", "host.state"),
    *("release", "inventory.report", "claim", "swap", "snapshot", "provider.create"),
    *("place", "remove", "spawned", "destroyed", "spawn", "destroy", "providers.changed", "claim.answered"),
)
WAYS_OF_QUESTIONS = ("snapshot", "instance.query", "host.query")
# Of these, those that are read from a queue of work, and are answered by nothing but a letter.
KEPT = frozenset(
    {
        *(
            "instance.delete",
            "instance.active",
            "host.state",
            "release",
            "inventory.report",
            "provider.create",
        ),
        *("place", "remove", "spawned", "destroyed", "spawn", "destroy"),
    }
)
# Letters that are as they should be: who had it in hand died or was cut off with it again and again.
EXPLAINED = ("came back",)
_EXAMPLES = {type_of(each): each for each in EXAMPLES}


class Intruders:
    def __init__(
        self, findings: Findings, memory: MemoryBroker, rights: Mapping[str, Rights], seen: Seen
    ) -> None:
        self._findings = findings
        self._memory = memory
        self._rights = rights
        self._seen = seen
        # What each of them sent, and what was wrong with it.
        self.sent: dict[str, str] = {}
        self._senders: dict[str, set[str]] = {}
        self._answering: asyncio.Task[None] | None = None
        # Those that went to a queue that loses nothing, and can only become letters.
        self._kept: set[str] = set()

    async def do(self, fault: Hostile) -> None:
        chance = random.Random(fault.lot)
        mark = f"{MARK}{len(self.sent)}-"
        if fault.content == "wrong_answer":
            self._seen.hear_next_question(partial(self._answer_wrongly, mark))
        elif fault.content in FORGERIES:
            await self._forge(fault.content, mark, chance)
        elif fault.content == CURSED:
            flavor = Flavor(vcpus=1, ram_mb=1024)
            build = BuildInstance(request_id=RequestId(UUID(int=fault.lot)), flavor=flavor, name=CURSED)
            self._sends(CURSED, mark, "a client boots", CLIENT.user)
            self._kept.add(mark)
            await self._publish(CLIENT.user, address_of(build), _line_of(build, mark, mark))
        else:
            await self._send_bytes(fault, mark, chance)

    # Bytes

    async def _send_bytes(self, fault: Hostile, mark: str, chance: random.Random) -> None:
        example = _in_cell(_EXAMPLES[fault.way], chance.choice(CELLS))
        address = address_of(example)
        if address.exchange == REPLY:
            queues = self._seen.answer_queues()
            if not queues:
                return
            address = Address(REPLY, chance.choice(queues), address.kind)
        user = self._user_for(address)
        body = _BODIES[fault.content](_line_of(example, mark, mark), mark, chance)
        content_type = LINES if b"\n" in body else PLAIN
        if fault.way in KEPT:
            self._kept.add(mark)
        self._sends(fault.content, mark, f"{user} says {address.routing_key}", user)
        await self._publish(user, address, body, content_type=content_type)

    def _user_for(self, address: Address) -> str:
        """The first who may say so: whoever has fewest rights comes first."""
        of_cells = [user_of(role, cell) for role in ("compute", "conductor") for cell in CELLS]
        above = map(user_of, ("scheduler", "placement", "operator"))
        return next(
            user
            for user in (RIVAL.user, CLIENT.user, *of_cells, *above)
            if self._rights[user].may_publish(address.exchange, address.routing_key)
        )

    # Messages

    async def _forge(self, what: str, mark: str, chance: random.Random) -> None:
        targets = self._seen.targets()
        if not targets:
            return
        target = chance.choice(targets)
        other = next(cell for cell in CELLS if cell != target.cell)
        for user, message, address, extra in _FORGED[what](target, other, self._seen.answer_queues()):
            self._sends(
                what, mark, f"{user or 'nobody'} says {address.routing_key} of {target.instance}", user
            )
            more = {key: value for key, value in extra.items() if key != "ids"}
            for id_ in extra.get("ids", (mark,)):
                is_taken = await self._publish(user, address, _line_of(message, id_, mark), **more)
                if is_taken and what == "forged_answer":
                    self._findings.breaks(AUTHORITY, f"{user} may say {address.routing_key} to {REPLY}")

    def _answer_wrongly(self, mark: str, question: Parcel) -> None:
        """Placement answers at once, by what is no answer to what was asked."""
        address = Address(REPLY, question.reply_to, Kind.ANSWER)
        user = user_of("placement")
        self._sends("wrong_answer", mark, f"{user} answers {question.routing_key}", user)

        async def answer() -> None:
            for envelope in known_messages(question, CODEC):
                await self._publish(user, address, _line_of(_EXAMPLES["names.found"], mark, envelope.id))

        self._answering = Context().run(asyncio.get_running_loop().create_task, answer())

    def _sends(self, what: str, mark: str, how: str, user: str) -> None:
        self.sent[mark] = what
        self._senders.setdefault(mark, set()).add(user)
        self._findings.see("fault", f"hostile_{what}")
        self._findings.tell("FAULT", "{}: {}", f"hostile_{what}", how)

    async def _publish(self, user: str, address: Address, body: bytes, **more: Any) -> bool:
        """Whether the broker took it."""
        connection = self._memory.connect(user)
        try:
            publishing = await connection.open_publishing()
            await publishing.publish(
                Parcel(address.exchange, address.routing_key, body, persistent=True, **more)
            )
        except Interrupted:
            return False
        except Exception as refused:  # noqa: BLE001 - however a broker refuses, it is refused
            self._findings.tell("FAULT", "refused: {}", refused)
            return False
        finally:
            await connection.close()
        return True

    # What has become of them

    def wrong_letters(self, letters: Iterable[DeadLetter]) -> Iterator[str]:
        """Letters of others; of what was sent here, those whose reason does not tell what is wrong, and those that lack."""
        buried = set()
        for letter in letters:
            mark = next((mark for mark in self.sent if mark.encode() in letter.body), "")
            buried.add(mark)
            if not mark and not letter.reason.startswith(EXPLAINED):
                yield f"dead letter from {letter.queue}: {letter.reason}"
            elif mark and not re.search(REASONS.get(self.sent[mark], "."), letter.reason):
                yield f"the letter of what is {self.sent[mark]} only tells: {letter.reason!r}"
            elif mark and letter.origin.sender not in self._senders[mark]:
                yield f"the letter of what is {self.sent[mark]} says that {letter.origin.sender!r} sent it"
        for mark in sorted(self._kept - buried):
            yield f"there is no letter of what is {self.sent[mark]}, {mark}"


_RIVAL_BUILD = BuildInstance(project=RIVAL_PROJECT, flavor=Flavor(vcpus=1, ram_mb=1024))

# Lines


def _line_of(message: Message, id_: str, cause: str) -> bytes:
    """It tells who sent it in its cause, which stays when it is put back."""
    return encode(Envelope(message=message, id=id_, version=message.VERSION, cause=cause))


def _in_cell(message: Message, cell: str) -> Message:
    return structs.replace(message, cell=cell) if hasattr(message, "cell") else message


def _not_utf8(line: bytes, _mark: str, _chance: random.Random) -> bytes:
    """In a key that nobody reads, where such a key is refused: the decoder skips it. Else in one that is read."""
    message = msgspec.json.decode(line)["message"]
    key = b"x" if _EXAMPLES[message["type"]].IS_STRICT else b"trace"
    return line[:-1] + b',"' + key + b'":"\xff"}'


def _with_wrong_field(line: bytes, _mark: str, chance: random.Random) -> bytes:
    wrapped = msgspec.json.decode(line)
    fields = sorted(wrapped["message"].keys() - {"type"}) or ["limit"]
    wrapped["message"][chance.choice(fields)] = -0.5
    return msgspec.json.encode(wrapped)


_BODIES: dict[str, Callable[[bytes, str, random.Random], bytes]] = {
    "not_utf8": _not_utf8,
    "unknown_type": lambda line, _mark, _chance: re.sub(
        rb'"type":"[^"]+"', b'"type":"no.such"', line, count=1
    ),
    "wrong_field": _with_wrong_field,
    "nul": lambda line, _mark, _chance: line[:-1] + b',"trace":"a\\u0000b"}',
    "deep": lambda _line, mark, _chance: b'{"id":"' + mark.encode() + b'","message":' + b"[" * NESTED_DEEP,
    "truncated": lambda line, _mark, _chance: line[:-2],
    "oversized": lambda line, _mark, _chance: line[:-1] + b" " * PARCEL_BYTES_MAX + b"}",
    "among_good": lambda line, mark, _chance: b"\n".join(
        (line, b'{"id":"' + mark.encode() + b'"', line[:-1])
    ),
}

# Forged messages: the user that says it, the message, where it is sent, and what is on its parcel.
_Forged = tuple[str, Message, Address, Mapping[str, Any]]


def _foreign_release(target: Target, other: str, _: object) -> Iterator[_Forged]:
    """A cell ends the claim of another's instance, by that one's name, which its key does not allow."""
    message = ReleaseClaim(
        cell=target.cell, consumer=ConsumerId(target.instance), attempt=target.attempt + 5, issued_at=AT
    )
    address = structs.replace(address_of(message), routing_key=f"release.{other}")
    yield user_of("conductor", other), message, address, {}


def _foreign_consumer(target: Target, other: str, _: object) -> Iterator[_Forged]:
    """By its own name, and of another's consumer."""
    message = ReleaseClaim(
        cell=other, consumer=ConsumerId(target.instance), attempt=target.attempt + 5, issued_at=AT
    )
    yield user_of("conductor", other), message, address_of(message), {}


def _foreign_report(target: Target, other: str, _: object) -> Iterator[_Forged]:
    message = ReportInventory(cell=other, root=target.host, providers=(), removed=(target.host,))
    yield user_of("compute", other), message, address_of(message), {}


def _foreign_end(target: Target, other: str, _: object) -> Iterator[_Forged]:
    """A cell says that another's instance is deleted: as its own, and as the other's."""
    for cell in (other, target.cell):
        state = InstanceState(
            id=target.instance, request_id=target.request, sequence=1_000, state="deleted", cell=cell
        )
        address = address_of(InstanceDeleted(cell=other, instance=state))
        yield user_of("conductor", other), InstanceDeleted(cell=cell, instance=state), address, {}


def _foreign_host(target: Target, other: str, _: object) -> Iterator[_Forged]:
    """A cell says that another's host is its own, and full."""
    facts = HostFacts(id=target.host, name=target.host_name, instances=10_000)
    message = HostsReported(cell=other, hosts=(facts,), sequence=2**62)
    yield user_of("compute", other), message, address_of(message), {}


def _foreign_destroy(target: Target, other: str, _: object) -> Iterator[_Forged]:
    """A cell has its own computes destroy what is on a host of another."""
    message = DestroyInstance(cell=other, instance=target.instance, attempt=target.attempt, host=target.host)
    yield user_of("conductor", other), message, address_of(message), {}


def _forged_header(target: Target, other: str, answers: object) -> Iterator[_Forged]:
    """A header says that a scheduler sent it."""
    for user, message, address, _more in _foreign_consumer(target, other, answers):
        yield user, message, address, {"headers": {headers.SENDER: user_of("scheduler")}}


def _unnamed(target: Target, _other: str, _: object) -> Iterator[_Forged]:
    """Nobody says who sent it."""
    message = ReleaseClaim(
        cell=target.cell, consumer=ConsumerId(target.instance), attempt=target.attempt + 5, issued_at=AT
    )
    yield "", message, address_of(message), {}


def _wrong_key(target: Target, other: str, _: object) -> Iterator[_Forged]:
    """A client frees an instance's share by the key of a question, and disables a host by that of a request; a conductor
    ends another cell's instance by the key of its own release.
    """
    release = ReleaseClaim(
        cell=target.cell, consumer=ConsumerId(target.instance), attempt=target.attempt + 5, issued_at=AT
    )
    yield RIVAL.user, release, address_of(AskUsages(project=RIVAL_PROJECT)), {}
    yield RIVAL.user, SetHost(host=target.host_name, enabled=False), address_of(_RIVAL_BUILD), {}
    yield (
        user_of("conductor", other),
        RemoveFromCell(cell=target.cell, instance=target.instance, request_id=target.request, issued_at=AT),
        structs.replace(address_of(release), routing_key=f"release.{other}"),
        {},
    )


def _foreign_project(target: Target, _other: str, _: object) -> Iterator[_Forged]:
    """An application deletes an instance of a project that is not its own: as its own, and by the other's key."""
    delete = DeleteInstance(instance=target.instance, project=RIVAL_PROJECT)
    yield RIVAL.user, delete, address_of(delete), {}
    unnamed = DeleteInstance(instance=target.instance)
    yield RIVAL.user, unnamed, address_of(delete), {}


def _stolen_answer(_target: Target, _other: str, answers: list[str]) -> Iterator[_Forged]:
    """Somebody has a scheduler answered what it did not ask, by ids that may be those of its questions."""
    for queue in answers:
        process = queue.split(".")[-1].rpartition("-")[0]
        ids = tuple(f"{process}-q{n}" for n in range(1, ANSWERS_GUESSED))
        usages = AskUsages(project=RIVAL_PROJECT)
        yield RIVAL.user, usages, address_of(usages), {"reply_to": queue, "ids": ids}
        search = _EXAMPLES["candidates"]
        yield CLIENT.user, search, address_of(search), {"reply_to": queue, "ids": ids}


def _forged_answer(_target: Target, _other: str, answers: list[str]) -> Iterator[_Forged]:
    """Whoever answers no questions says something to the queue of an asker."""
    for queue in answers[:1]:
        for user in (RIVAL.user, CLIENT.user, *(user_of("conductor", cell) for cell in CELLS)):
            yield user, _EXAMPLES["snapshot.page"], Address(REPLY, queue, Kind.ANSWER), {}


_FORGED: dict[str, Callable[[Target, str, list[str]], Iterator[_Forged]]] = {
    "foreign_release": _foreign_release,
    "foreign_consumer": _foreign_consumer,
    "foreign_report": _foreign_report,
    "foreign_end": _foreign_end,
    "foreign_host": _foreign_host,
    "foreign_destroy": _foreign_destroy,
    "forged_header": _forged_header,
    "unnamed": _unnamed,
    "wrong_key": _wrong_key,
    "stolen_answer": _stolen_answer,
    "forged_answer": _forged_answer,
    "foreign_project": _foreign_project,
}
