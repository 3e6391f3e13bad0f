"""Ears on every wire: who says what to whom, and what comes again. Cells never call up, whoever speaks has the right to."""

from collections import deque
from collections.abc import Mapping, Sequence

from bus import headers
from bus.broker import Delivery, Parcel
from bus.codec import CODEC, encode, known_messages
from bus.message import type_of
from bus.permissions import Rights
from bus.topology import DEAD, ROUTES, cell_of_user
from tests.simulation.faults import Duplicate
from tests.simulation.findings import Findings
from tests.simulation.process import SimProcess

# What a cell may say anything to: its own exchange, placement, the events, and its own way back.
OF_CELLS = (
    *("moor.cell.{cell}", "moor.placement", "moor.events", DEAD),
    *("moor.retry.conductor.{cell}", "moor.retry.compute.{cell}"),
)
WORKED_OFF = (".work", ".requests", ".events")
HANDED_OVER_MAX = 200


class Ears:
    def __init__(self, findings: Findings, rights: Mapping[str, Rights]) -> None:
        self._findings = findings
        self._rights = rights
        self._allowed: dict[tuple[str, str, str], bool] = {}
        self._copies: deque[Duplicate] = deque()
        # Queues that come late to whom, until when; for everybody where no process is named.
        self._quiet: dict[tuple[str, str], float] = {}
        # Of each entity: the messages about it, in the order in which they were handed out.
        self._about: dict[object, list[str]] = {}
        self._after_crash: set[str] = set()
        self._in_hand: dict[str, deque[str]] = {}
        self.buried: list[tuple[str, str]] = []
        # To whom; looked into once more when they have been read.
        self._handed_over: deque[tuple[str, Parcel]] = deque()

    # What is to befall parcels

    def copy_next(self, fault: Duplicate) -> None:
        self._copies.append(fault)

    def delay(self, process: str, queue: str, until_s: float) -> None:
        self._quiet[process, queue] = until_s

    def copies_of(self, parcel: Parcel) -> Sequence[float]:
        found = [each for each in self._copies if parcel.routing_key.startswith(each.key)]
        for each in found:
            self._copies.remove(each)
        return [each.after_s for each in found]

    def quiet_until_s(self, process: SimProcess, queue: str) -> float:
        if not self._quiet:
            return 0.0
        late = [
            until_s
            for (name, end), until_s in self._quiet.items()
            if queue.endswith(end) and name in ("", process.name)
        ]
        return max(late, default=0.0)

    def died(self, process: SimProcess) -> None:
        """What it had in hand comes again."""
        self._after_crash.update(self._in_hand.pop(process.full_name, ()))

    def calm(self) -> None:
        while self._handed_over:
            self._look_again()
        self._copies.clear()
        self._quiet.clear()

    def fired(self, fault: str, process: str) -> None:
        self._findings.see("fault", fault)
        self._findings.tell("FAULT", "{} of {}", fault, process)

    # What is said

    def published(self, process: SimProcess, parcel: Parcel, user: str) -> None:
        key = (user, parcel.exchange, parcel.routing_key)
        if parcel.exchange == DEAD:
            reason = str(parcel.headers.get(headers.REASON, parcel.headers))
            self.buried.append((parcel.routing_key, reason))
            self._findings.tell(process.full_name, "buries {}: {}", parcel.routing_key, reason)
        allowed = self._allowed.get(key)
        if allowed is None:
            allowed = self._allowed[key] = self._may_say(user, parcel)
        if (kind := _type_in(parcel.routing_key)) in ROUTES:
            self._findings.see("type", kind)
        if not allowed:
            self._findings.breaks(
                "no up-calls", f"{process.full_name} says {parcel.routing_key} to {parcel.exchange}"
            )

    def _may_say(self, user: str, parcel: Parcel) -> bool:
        cell = cell_of_user(user)
        exchanges = [each.replace("{cell}", cell) for each in OF_CELLS] if cell else [parcel.exchange]
        return parcel.exchange in exchanges and self._rights[user].may_publish(
            parcel.exchange, parcel.routing_key
        )

    # What is handed out

    def delivered(self, process: SimProcess, queue: str, deliveries: Sequence[Delivery]) -> None:
        for each in deliveries:
            self._hand_over(process, queue, each.parcel)
        if queue.startswith("feed."):
            return
        is_work, is_answer = queue.endswith(WORKED_OFF), queue.startswith("answers.")
        for each in deliveries:
            if each.returns:
                self._findings.see("fault", "redelivered")
            for envelope in known_messages(each.parcel, CODEC):
                message = envelope.message
                if is_answer:
                    self._findings.see("type", type_of(message))
                if is_work:
                    self._note(process, envelope.id, getattr(message, "instance", None))

    def _hand_over(self, process: SimProcess, queue: str, parcel: Parcel) -> None:
        """What is handed over may be changed by who wrote it, until it is here, and by who reads it, from then on."""
        if not parcel.envelopes:
            return
        self._findings.see("fault", "handed_over")
        if parcel.body:
            self._look_into(parcel, f"{process.full_name} is handed, from {queue},")
            self._handed_over.append((process.full_name, parcel))
            if len(self._handed_over) > HANDED_OVER_MAX:
                self._look_again()

    def _look_again(self) -> None:
        reader, parcel = self._handed_over.popleft()
        self._look_into(parcel, f"{reader} has left")

    def _look_into(self, parcel: Parcel, what: str) -> None:
        if b"\n".join(map(encode, parcel.envelopes)) != parcel.body:
            self._findings.breaks("what is said stays as it is", f"{what} another {parcel.body!r}")

    def _note(self, process: SimProcess, id_: str, entity: object) -> None:
        self._in_hand.setdefault(process.full_name, deque(maxlen=50)).append(id_)
        if entity is None:
            return
        about = self._about.setdefault(entity, [])
        if id_ in self._after_crash and id_ in about and about[-1] != id_:
            self._findings.see("fault", "between_commit_and_redelivery")
        about.append(id_)


def _type_in(routing_key: str) -> str:
    """A key is a type, or one with a cell."""
    return routing_key if routing_key in ROUTES else routing_key.rpartition(".")[0]
