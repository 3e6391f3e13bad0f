"""Ears on every wire: who says what to whom, and what comes again. Cells never call up, whoever speaks has the right to."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from bus import headers
from bus.broker import Delivery, Parcel, Receipt
from bus.codec import CODEC, encode, known_messages
from bus.message import type_of
from bus.permissions import Rights
from bus.topology import DEAD, IRONIC_EVENTS, ROUTES, cell_of_user
from tests.simulation.faults import Duplicate, Nack, Unroutable
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
        # How many more parcels with a key that starts so are refused, and whether a queue takes them all the same.
        self._nacks: dict[tuple[str, bool], int] = {}
        self._unroutable_until_s: dict[str, float] = {}
        # Queues that come late to whom, until when; for everybody where no process is named.
        self._quiet: dict[tuple[str, str], float] = {}
        # Of each entity: the messages about it, in the order in which they were handed out.
        self._about: dict[object, list[str]] = {}
        self._after_crash: set[str] = set()
        self._in_hand: dict[str, deque[str]] = {}
        # The queue of answers that each process reads, since it last heard one.
        self.answers_of: dict[str, str] = {}
        # Who wants to hear the next question of a scheduler.
        self._eager: list[Callable[[Parcel], None]] = []
        # To whom; looked into once more when they have been read.
        self._handed_over: deque[tuple[str, Parcel]] = deque()

    # What is to befall parcels

    def copy_next(self, fault: Duplicate) -> None:
        self._copies.append(fault)

    def nack_next(self, fault: Nack) -> None:
        self._nacks[fault.key, fault.is_stored] = fault.parcels

    def route_nothing(self, fault: Unroutable) -> None:
        self._unroutable_until_s[fault.key] = self._findings.now_s + fault.for_s

    def turned_away(self, process: SimProcess, parcel: Parcel) -> Receipt | None:
        if not (self._nacks or self._unroutable_until_s):
            return None
        if self._takes_nack(process, parcel, is_stored=False):
            return Receipt.REFUSED
        now_s, key = self._findings.now_s, parcel.routing_key
        is_away = any(
            now_s < end and key.startswith(start) for start, end in self._unroutable_until_s.items()
        )
        if not (is_away and parcel.mandatory):
            return None
        self.fired("unroutable", f"{process.full_name} {key}")
        return Receipt.UNROUTABLE

    def is_nacked(self, process: SimProcess, parcel: Parcel) -> bool:
        return bool(self._nacks) and self._takes_nack(process, parcel, is_stored=True)

    def _takes_nack(self, process: SimProcess, parcel: Parcel, *, is_stored: bool) -> bool:
        for (start, stores), left in self._nacks.items():
            if left and stores is is_stored and parcel.routing_key.startswith(start):
                self._nacks[start, stores] = left - 1
                self.fired("nack", f"{process.full_name} {parcel.routing_key}")
                return True
        return False

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
        self._nacks.clear()
        self._unroutable_until_s.clear()
        self._quiet.clear()
        self._eager.clear()

    def fired(self, fault: str, process: str) -> None:
        self._findings.see("fault", fault)
        self._findings.tell("FAULT", "{} of {}", fault, process)

    # What is said

    def published(self, process: SimProcess, parcel: Parcel, user: str) -> None:
        if self._eager and parcel.reply_to and process.name.startswith("scheduler"):
            self._eager.pop()(parcel)
        key = (user, parcel.exchange, parcel.routing_key)
        if parcel.exchange == DEAD:
            reason = str(parcel.headers.get(headers.REASON, parcel.headers))
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

    def hear_next_question(self, tell: Callable[[Parcel], None]) -> None:
        self._eager.append(tell)

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
        if queue.startswith(("feed.", IRONIC_EVENTS)):
            return
        is_work, is_answer = queue.endswith(WORKED_OFF), queue.startswith("answers.")
        if is_answer:
            self.answers_of[process.name] = queue
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
