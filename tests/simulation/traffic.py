"""Sees every message that is published or delivered. Checks that no cell calls up and that each sender has the right to
publish; applies faults to parcels.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from bus import message as headers
from bus.broker import Delivery, Receipt
from bus.codec import CODEC, known_messages
from bus.definitions import Rights
from bus.message import REPLY, Parcel, type_of
from bus.messages import TYPES
from bus.queues import DEAD, IRONIC_EVENTS
from bus.topology import broker_user_of, user_of
from tests.simulation.boots_checkers import OutagesChecker
from tests.simulation.faults import Duplicate, Nack, Unroutable
from tests.simulation.findings import Findings
from tests.simulation.process import SimProcess

# The exchanges that a cell may publish to: its own, placement's, the events', dead letters, and its own retries.
CELL_EXCHANGES = (
    *("moor.cell.{cell}", "moor.placement", "moor.events", DEAD),
    *("moor.retry.conductor.{cell}", "moor.retry.compute.{cell}"),
)
WORK_QUEUE_ENDS = (".work", ".requests", ".events")


class Traffic:
    def __init__(self, findings: Findings, rights: Mapping[str, Rights], outages: OutagesChecker) -> None:
        self._findings = findings
        self._rights = rights
        self._outages = outages
        self._allowed: dict[tuple[str, str, str], bool] = {}
        self._copies: deque[Duplicate] = deque()
        # How many more parcels with this start of the key are refused, and whether a queue stores them all the same.
        self._nacks: dict[tuple[str, bool], int] = {}
        self._unroutable_until_s: dict[str, float] = {}
        # Queues that are delayed, for which process, and until when; for every process where the name is empty.
        self._quiet: dict[tuple[str, str], float] = {}
        # The messages about each entity, in the order of delivery.
        self._ids_about: dict[object, list[str]] = {}
        self._redelivered_after_crash: set[str] = set()
        self._in_hand: dict[str, deque[str]] = {}
        # The answer queue that each process reads, learnt from its latest delivery.
        self.answers_of: dict[str, str] = {}
        # Callbacks that wait for the next question of a scheduler.
        self._question_listeners: list[Callable[[Parcel], None]] = []

    # Faults to apply to parcels

    def copy_next(self, fault: Duplicate) -> None:
        self._copies.append(fault)

    def nack_next(self, fault: Nack) -> None:
        self._nacks[fault.key, fault.is_stored] = fault.parcels

    def route_nothing(self, fault: Unroutable) -> None:
        self._unroutable_until_s[fault.key] = self._findings.now_s + fault.for_s

    def refused_receipt(self, process: SimProcess, parcel: Parcel) -> Receipt | None:
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
        """Note that the unacknowledged messages of this process will be redelivered."""
        self._redelivered_after_crash.update(self._in_hand.pop(process.full_name, ()))

    def stop_faults(self) -> None:
        self._copies.clear()
        self._nacks.clear()
        self._unroutable_until_s.clear()
        self._quiet.clear()
        self._question_listeners.clear()

    def fired(self, fault: str, process: str) -> None:
        self._findings.count("fault", fault)
        self._findings.log("FAULT", "{} of {}", fault, process)

    # Published parcels

    def published(self, process: SimProcess, parcel: Parcel, user: str) -> None:
        if self._question_listeners and parcel.reply_to and process.name.startswith("scheduler"):
            self._question_listeners.pop()(parcel)
        key = (user, parcel.exchange, parcel.routing_key)
        if parcel.exchange == DEAD:
            reason = str(parcel.headers.get(headers.REASON, parcel.headers))
            self._findings.log(process.full_name, "dead-letters {}: {}", parcel.routing_key, reason)
        allowed = self._allowed.get(key)
        if allowed is None:
            allowed = self._allowed[key] = self._may_say(user, parcel)
        if (kind := _type_in(parcel.routing_key)) in TYPES:
            self._findings.count("type", kind)
            if process.name.startswith("keeper"):
                process.cloud.keeping.sent(parcel)
            if kind == "conductor.beat":
                self._outages.beat(parcel.routing_key.rpartition(".")[2], b'"trouble"' not in parcel.body)
        if not allowed:
            self._findings.breaks(
                "no up-calls", f"{process.full_name} publishes {parcel.routing_key} to {parcel.exchange}"
            )

    def on_next_question(self, listen: Callable[[Parcel], None]) -> None:
        self._question_listeners.append(listen)

    def _may_say(self, user: str, parcel: Parcel) -> bool:
        speaker = broker_user_of(user)
        cell = speaker.cell if speaker else ""
        exchanges = [each.replace("{cell}", cell) for each in CELL_EXCHANGES] if cell else [parcel.exchange]
        if parcel.routing_key.startswith(f"answers.{user_of('operator')}."):
            # An answer to an operator who asked the cell itself.
            exchanges.append(REPLY)
        return parcel.exchange in exchanges and self._rights[user].may_publish(
            parcel.exchange, parcel.routing_key
        )

    # Deliveries

    def delivered(self, process: SimProcess, queue: str, deliveries: Sequence[Delivery]) -> None:
        if queue.startswith(("feed.", IRONIC_EVENTS)):
            return
        is_work, is_answer = queue.endswith(WORK_QUEUE_ENDS), queue.startswith("answers.")
        if is_answer:
            self.answers_of[process.name] = queue
        for each in deliveries:
            if each.returns:
                self._findings.count("fault", "redelivered")
            for envelope in known_messages(each.parcel, CODEC):
                message = envelope.message
                if is_answer:
                    self._findings.count("type", type_of(message))
                if is_work:
                    # An order names its instance by the id, an event by its state.
                    entity = getattr(message, "instance", None)
                    self._note(process, envelope.id, getattr(entity, "id", entity))

    def _note(self, process: SimProcess, id_: str, entity: object) -> None:
        self._in_hand.setdefault(process.full_name, deque(maxlen=50)).append(id_)
        if entity is None:
            return
        about = self._ids_about.setdefault(entity, [])
        if id_ in self._redelivered_after_crash and id_ in about and about[-1] != id_:
            self._findings.count("fault", "between_commit_and_redelivery")
        about.append(id_)


def _type_in(routing_key: str) -> str:
    """A routing key is a message type, or a message type and a cell."""
    return routing_key if routing_key in TYPES else routing_key.rpartition(".")[0]
