"""Attackers and broken programs: bytes that are no messages, for every queue, and messages that claim another user's
authority.

Each is published as a user of the topology, so the broker judges its rights. The attack must do no harm, which the
other checkers verify; and each dead letter that it becomes must say what was wrong.
"""

import asyncio
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import Context
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from msgspec import structs

from bus import message as headers
from bus.codec import CODEC, encode, known_messages
from bus.definitions import Rights
from bus.memory import MemoryBroker
from bus.message import LINES, PARCEL_BYTES_MAX, PLAIN, Envelope, Message, Parcel, type_of
from bus.messages.books import AskUsages
from bus.messages.build import BuildInstance, DeleteInstance, InstanceDeleted, InstanceState
from bus.messages.cell import DestroyInstance, RemoveFromCell
from bus.messages.hosts import HostsReported, SetHost
from bus.messages.placement import ReleaseClaim, ReportInventory
from bus.topology import REPLY, Application, Destination, Kind, destination_of, user_of
from bus.workers.dead_letters import DeadLetter
from engine.flavors import Flavor, RequestId
from engine.hosts import HostFacts
from engine.inventories import ConsumerId
from kit.errors import Interrupted
from tests.simulation.faults import CURSED, FORGERIES, Hostile
from tests.simulation.findings import Findings
from tests.simulation.foreign_owners import FOREIGN_ATTACKS, RIVAL_PROJECT, Target
from tests.simulation.loop import until_s
from tests.simulation.plan import CELLS
from tests.unit.examples import EXAMPLES

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

CLIENT = Application("people", admin=True)
# An application with a project of its own that owns no instance.
RIVAL = Application("rival", projects=(RIVAL_PROJECT,))
AUTHORITY = "nobody acts with another's authority"
MARK = "hostile-"
AT = datetime(2026, 1, 1, tzinfo=UTC)
NESTED_DEEP = 20_000
ANSWERS_GUESSED = 6
PUBLISHED_AGAIN_S = 1.0
# Long after each attack: the alarm must have been raised although workers die and messages come late.
ALARM_BY_S = 32.0


# A pattern for the dead letter's reason, for each kind of broken body.
REASONS: Mapping[str, str] = {
    "not_utf8": r"(?i)utf-?8",
    "unknown_type": r"unknown message type 'no\.such'",
    "wrong_field": r"Expected|missing|unknown field|unknown key",
    "nul": r"NUL",
    "deep": r"(?i)nested|deep|recursion",
    "truncated": r"(?i)truncated|malformed|json",
    "oversized": r"oversized",
    "among_good": r"(?i)malformed|json|truncated",
    CURSED: r"database: .*attempts, none is left|^came back",
}
# A message type for each queue, feed or process that reads messages.
MESSAGE_TYPES = (
    *("build.request", "instance.delete", "instance.query", "host.query", "instance.active", "host.state"),
    *("release", "inventory.report", "claim", "swap", "snapshot", "provider.create"),
    *("place", "remove", "spawned", "destroyed", "spawn", "destroy", "providers.changed", "claim.answered"),
)
QUESTION_TYPES = ("snapshot", "instance.query", "host.query")
# The types that are read from a work queue: a broken message of these can only become a dead letter.
WORK_TYPES = frozenset(
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
# Dead letters that are expected: their consumers died or were cut off again and again.
EXPECTED_REASONS = ("came back",)
_EXAMPLES = {type_of(each): each for each in EXAMPLES}


class Intruders:
    def __init__(
        self,
        findings: Findings,
        memory: MemoryBroker,
        rights: Mapping[str, Rights],
        cloud: "Cloud",
    ) -> None:
        self._findings = findings
        self._memory = memory
        self._rights = rights
        self._cloud = cloud
        # What each attack sent, by its mark.
        self.sent: dict[str, str] = {}
        self._senders: dict[str, set[str]] = {}
        self._answering: asyncio.Task[None] | None = None
        # Attacks that went to a durable work queue, so that each must become a dead letter.
        self._must_be_buried: set[str] = set()

    async def attack(self, fault: Hostile) -> None:
        chance = random.Random(fault.seed)
        mark = f"{MARK}{len(self.sent)}-"
        if fault.content == "wrong_answer":
            self._cloud.traffic.on_next_question(partial(self._answer_wrongly, mark))
        elif fault.content in FORGERIES:
            await self._forge(fault.content, mark, chance)
        elif fault.content in FOREIGN_ATTACKS:
            await self._attack_owner(fault.content, mark, chance)
        elif fault.content == CURSED:
            flavor = Flavor(vcpus=1, ram_mb=1024)
            build = BuildInstance(request_id=RequestId(UUID(int=fault.seed)), flavor=flavor, name=CURSED)
            self._record(CURSED, mark, "a client boots", CLIENT.user)
            self._must_be_buried.add(mark)
            await self._publish(CLIENT.user, destination_of(build), _line_of(build, mark, mark))
        else:
            await self._send_bytes(fault, mark, chance)

    # Bytes

    async def _send_bytes(self, fault: Hostile, mark: str, chance: random.Random) -> None:
        example = _in_cell(_EXAMPLES[fault.message_type], chance.choice(CELLS))
        address = destination_of(example)
        if address.exchange == REPLY:
            queues = self._cloud.answer_queues()
            if not queues:
                return
            address = Destination(REPLY, chance.choice(queues), address.kind)
        user = self._user_for(address)
        body = _BODIES[fault.content](_line_of(example, mark, mark), mark, chance)
        content_type = LINES if b"\n" in body else PLAIN
        if fault.message_type in WORK_TYPES:
            self._must_be_buried.add(mark)
        self._record(fault.content, mark, f"{user} publishes {address.routing_key}", user)
        await self._publish(user, address, body, content_type=content_type)

    def _user_for(self, address: Destination) -> str:
        """The first user that may publish to this address; users with the fewest rights come first."""
        of_cells = [user_of(role, cell) for role in ("compute", "conductor") for cell in CELLS]
        above = map(user_of, ("scheduler", "placement", "operator"))
        return next(
            user
            for user in (RIVAL.user, CLIENT.user, *of_cells, *above)
            if self._rights[user].may_publish(address.exchange, address.routing_key)
        )

    # Messages

    async def _forge(self, what: str, mark: str, chance: random.Random) -> None:
        targets = self._cloud.targets()
        if not targets:
            return
        target = chance.choice(targets)
        other = next(cell for cell in CELLS if cell != target.cell)
        for user, message, address, extra in _FORGED[what](target, other, self._cloud.answer_queues()):
            self._record(
                what,
                mark,
                f"{user or 'no user'} publishes {address.routing_key} about {target.instance}",
                user,
            )
            more = {key: value for key, value in extra.items() if key != "ids"}
            for id_ in extra.get("ids", (mark,)):
                is_taken = await self._publish(user, address, _line_of(message, id_, mark), **more)
                if is_taken and what == "forged_answer":
                    self._findings.breaks(AUTHORITY, f"{user} may publish {address.routing_key} to {REPLY}")

    async def _attack_owner(self, what: str, mark: str, chance: random.Random) -> None:
        for user, message in FOREIGN_ATTACKS[what](self._cloud, chance):
            address = destination_of(message)
            self._record(what, mark, f"{user} publishes {address.routing_key}", user)
            # Nothing may stay of its own claim.
            while not await self._publish(user, address, _line_of(message, mark, mark)):
                await asyncio.sleep(PUBLISHED_AGAIN_S)
            if isinstance(message, HostsReported):
                await until_s(ALARM_BY_S)
                if missing := {each.name.lower() for each in message.hosts} - self._cloud.alarms:
                    self._findings.breaks(
                        AUTHORITY, f"no alarm about {sorted(missing)}, which two cells have"
                    )

    def _answer_wrongly(self, mark: str, question: Parcel) -> None:
        """Answer the question at once, as placement, with an answer of another type."""
        address = Destination(REPLY, question.reply_to, Kind.ANSWER)
        user = user_of("placement")
        self._record("wrong_answer", mark, f"{user} answers {question.routing_key}", user)

        async def answer() -> None:
            for envelope in known_messages(question, CODEC):
                await self._publish(user, address, _line_of(_EXAMPLES["names.found"], mark, envelope.id))

        self._answering = Context().run(asyncio.get_running_loop().create_task, answer())

    def _record(self, what: str, mark: str, how: str, user: str) -> None:
        self.sent[mark] = what
        self._senders.setdefault(mark, set()).add(user)
        self._findings.count("fault", f"hostile_{what}")
        self._findings.log("FAULT", "{}: {}", f"hostile_{what}", how)

    async def _publish(self, user: str, address: Destination, body: bytes, **more: Any) -> bool:
        """Publish these bytes as this user. True if the broker took them."""
        connection = self._memory.connect(user)
        try:
            publishing = await connection.open_publishing()
            await publishing.publish(
                Parcel(address.exchange, address.routing_key, body, persistent=True, **more)
            )
        except Interrupted:
            return False
        except Exception as refused:  # noqa: BLE001 - however a broker refuses, it is refused
            self._findings.log("FAULT", "refused: {}", refused)
            return False
        finally:
            await connection.close()
        return True

    # Results

    def wrong_dead_letters(self, letters: Collection[DeadLetter]) -> Iterator[str]:
        """Complaints about the dead letters: unexpected ones that are of no attack; those of attacks that name a
        wrong reason or sender; and attacks that have none although they must.
        """
        for letter in letters:
            mark = next((mark for mark in self.sent if mark.encode() in letter.parcel.body), "")
            if not mark and not letter.reason.startswith(EXPECTED_REASONS):
                yield f"dead letter from {letter.queue}: {letter.reason}"
            elif mark and not re.search(REASONS.get(self.sent[mark], "."), letter.reason):
                yield f"the dead letter of {self.sent[mark]} gives only this reason: {letter.reason!r}"
            elif mark and letter.origin.sender not in self._senders[mark]:
                yield f"the dead letter of {self.sent[mark]} names {letter.origin.sender!r} as its sender"
        yield from self.unburied(letters)

    def unburied(self, letters: Collection[DeadLetter]) -> Iterator[str]:
        """The attacks that must become dead letters and are none yet."""
        bodies = [letter.parcel.body for letter in letters]
        for mark in sorted(self._must_be_buried):
            if not any(mark.encode() in body for body in bodies):
                yield f"{self.sent[mark]} ({mark}) did not become a dead letter"


_RIVAL_BUILD = BuildInstance(project=RIVAL_PROJECT, flavor=Flavor(vcpus=1, ram_mb=1024))

# Lines


def _line_of(message: Message, id_: str, cause: str) -> bytes:
    """The line of a parcel with this message. Its cause holds the mark of the attack, since the cause stays the same
    when the message is put back.
    """
    return encode(Envelope(message=message, id=id_, version=message.VERSION, cause=cause))


def _in_cell(message: Message, cell: str) -> Message:
    return structs.replace(message, cell=cell) if hasattr(message, "cell") else message


def _not_utf8(line: bytes, _mark: str, _chance: random.Random) -> bytes:
    """The line with one more key, whose value is not UTF-8. It is a key that the decoder skips, for types that refuse
    unknown keys; for others a key that it reads.
    """
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

# Forged messages: the user that publishes it, the message, its address, and properties of its parcel.
_Forged = tuple[str, Message, Destination, Mapping[str, Any]]


def _foreign_release(target: Target, other: str, _: object) -> Iterator[_Forged]:
    """A cell releases the claim of another cell's instance in that cell's name; its user may not use that key."""
    message = ReleaseClaim(
        cell=target.cell, consumer=ConsumerId(target.instance), attempt=target.attempt + 5, issued_at=AT
    )
    address = structs.replace(destination_of(message), routing_key=f"release.{other}")
    yield user_of("conductor", other), message, address, {}


def _foreign_consumer(target: Target, other: str, _: object) -> Iterator[_Forged]:
    """A cell releases the consumer of another cell in its own name."""
    message = ReleaseClaim(
        cell=other, consumer=ConsumerId(target.instance), attempt=target.attempt + 5, issued_at=AT
    )
    yield user_of("conductor", other), message, destination_of(message), {}


def _foreign_report(target: Target, other: str, _: object) -> Iterator[_Forged]:
    message = ReportInventory(cell=other, root=target.host, providers=(), removed=(target.host,))
    yield user_of("compute", other), message, destination_of(message), {}


def _foreign_end(target: Target, other: str, _: object) -> Iterator[_Forged]:
    """A cell reports that another cell's instance is deleted: once in its own name, once in the other's."""
    for cell in (other, target.cell):
        state = InstanceState(
            id=target.instance, request_id=target.request, sequence=1_000, state="deleted", cell=cell
        )
        address = destination_of(InstanceDeleted(cell=other, instance=state))
        yield user_of("conductor", other), InstanceDeleted(cell=cell, instance=state), address, {}


def _foreign_host(target: Target, other: str, _: object) -> Iterator[_Forged]:
    """A cell reports another cell's host as its own, and as full."""
    facts = HostFacts(id=target.host, name=target.host_name, instances=10_000)
    message = HostsReported(cell=other, hosts=(facts,), sequence=2**62)
    yield user_of("compute", other), message, destination_of(message), {}


def _foreign_destroy(target: Target, other: str, _: object) -> Iterator[_Forged]:
    """A cell orders its own computes to destroy an instance on another cell's host."""
    message = DestroyInstance(cell=other, instance=target.instance, attempt=target.attempt, host=target.host)
    yield user_of("conductor", other), message, destination_of(message), {}


def _forged_header(target: Target, other: str, answers: object) -> Iterator[_Forged]:
    """A header names a scheduler as the sender."""
    for user, message, address, _more in _foreign_consumer(target, other, answers):
        yield user, message, address, {"headers": {headers.SENDER: user_of("scheduler")}}


def _unnamed(target: Target, _other: str, _: object) -> Iterator[_Forged]:
    """The message names no sender."""
    message = ReleaseClaim(
        cell=target.cell, consumer=ConsumerId(target.instance), attempt=target.attempt + 5, issued_at=AT
    )
    yield "", message, destination_of(message), {}


def _wrong_key(target: Target, other: str, _: object) -> Iterator[_Forged]:
    """A client releases an instance's claim under the key of a question, and disables a host under the key of a build
    request. A conductor removes another cell's instance under the key of its own release.
    """
    release = ReleaseClaim(
        cell=target.cell, consumer=ConsumerId(target.instance), attempt=target.attempt + 5, issued_at=AT
    )
    yield RIVAL.user, release, destination_of(AskUsages(project=RIVAL_PROJECT)), {}
    yield RIVAL.user, SetHost(host=target.host_name, mode="draining"), destination_of(_RIVAL_BUILD), {}
    yield (
        user_of("conductor", other),
        RemoveFromCell(
            cell=target.cell, instance=target.instance, request_id=target.request, sequence=3, issued_at=AT
        ),
        structs.replace(destination_of(release), routing_key=f"release.{other}"),
        {},
    )


def _foreign_project(target: Target, _other: str, _: object) -> Iterator[_Forged]:
    """An application deletes an instance of another project: once in its own project's name, once without a project."""
    delete = DeleteInstance(instance=target.instance, project=RIVAL_PROJECT)
    yield RIVAL.user, delete, destination_of(delete), {}
    unnamed = DeleteInstance(instance=target.instance)
    yield RIVAL.user, unnamed, destination_of(delete), {}


def _stolen_answer(_target: Target, _other: str, answers: list[str]) -> Iterator[_Forged]:
    """A client directs the answer to its own question to a scheduler, with ids that the scheduler's questions may have."""
    for queue in answers:
        process = queue.split(".")[-1].rpartition("-")[0]
        ids = tuple(f"{process}-q{n}" for n in range(1, ANSWERS_GUESSED))
        usages = AskUsages(project=RIVAL_PROJECT)
        yield RIVAL.user, usages, destination_of(usages), {"reply_to": queue, "ids": ids}
        search = _EXAMPLES["candidates"]
        yield CLIENT.user, search, destination_of(search), {"reply_to": queue, "ids": ids}


def _forged_answer(_target: Target, _other: str, answers: list[str]) -> Iterator[_Forged]:
    """A user that answers no questions publishes to the answer queue of another process."""
    for queue in answers[:1]:
        for user in (RIVAL.user, CLIENT.user, *(user_of("conductor", cell) for cell in CELLS)):
            yield user, _EXAMPLES["snapshot.page"], Destination(REPLY, queue, Kind.ANSWER), {}


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
