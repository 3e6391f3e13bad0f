"""Follow moves: what hosts and rows are told, and what instance and migration hold after each commit."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from bus.messages.build import Move
from bus.messages.cell import ReceiveInstance, SpawnInstance
from bus.messages.placement import ClaimResources, ReleaseClaim, SwapClaim
from cell_conductor.core.rows import Instance, Moving
from compute_sim.core.attempts import AttemptState
from engine.flavors import InstanceId, RequestId
from engine.inventories import ConsumerId, ResourceAmount
from placement_worker.core.ledger import ClaimOrder
from scheduler_worker.core.instances.rows import InstanceRow
from tests.simulation.findings import Findings
from tests.simulation.host_history import HostHistories, short_id
from tests.simulation.process import EPOCH
from tests.simulation.real_instances import RealInstances
from tests.simulation.write_rules import summed

MOVE = "move"
HELD_ONCE = "a move holds each amount once"
Amounts = tuple[ResourceAmount, ...]


class MovesChecker:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def committed(
        self,
        orders: Sequence[ClaimOrder],
        granted: Collection[tuple[ConsumerId, int]],
        before: Mapping[ConsumerId, Amounts],
        held: Mapping[ConsumerId, Amounts],
    ) -> None:
        """Skips consumers that several orders of one commit name: the books do not show what they held between two orders."""
        named = Counter(consumer for order in orders for consumer in _consumers_of(order))
        for order in granted_of(orders, granted):
            if isinstance(order, SwapClaim) and all(named[each] == 1 for each in _consumers_of(order)):
                self._check_heir(order, granted, before, held)
                self._check_end(order, held)

    def _check_heir(
        self,
        order: SwapClaim,
        granted: Collection[tuple[ConsumerId, int]],
        before: Mapping[ConsumerId, Amounts],
        held: Mapping[ConsumerId, Amounts],
    ) -> None:
        heir = order.heir
        if heir is None or (heir.type == "CLEANUP" and order.returns is None):
            return
        # Where a reshape has moved what comes back, the share of the order does not say.
        was, now, inherited = (
            Counter(summed(amounts))
            for amounts in (
                before.get(order.consumer, ()),
                held.get(order.consumer, ()),
                held.get(heir.id, ()),
            )
        )
        rest = was - now
        is_over = (heir.id, order.held_attempt) not in granted
        self._findings.count(
            MOVE, f"a {heir.type.lower()} holds the rest" if rest else "nothing is left over"
        )
        if inherited != rest and not (is_over and not inherited):
            self._findings.breaks(
                HELD_ONCE,
                f"the {heir.type} of {short_id(order.consumer)} holds {dict(inherited)}, and {dict(rest)} is left over",
            )

    def _check_end(self, order: SwapClaim, held: Mapping[ConsumerId, Amounts]) -> None:
        if order.returns is None:
            return
        self._findings.count(MOVE, "a way back")
        if left := held.get(order.returns):
            self._findings.breaks(
                HELD_ONCE, f"{short_id(order.consumer)} came back, and its migration still holds {left}"
            )


def granted_of(
    orders: Iterable[ClaimOrder], granted: Collection[tuple[ConsumerId, int]]
) -> Iterator[ClaimResources | SwapClaim]:
    """The claims and swaps among these orders that were granted."""
    for order in orders:
        if not isinstance(order, ReleaseClaim) and (order.consumer, order.attempt) in granted:
            yield order


def _consumers_of(order: ClaimOrder) -> tuple[ConsumerId, ...]:
    if not isinstance(order, SwapClaim):
        return (order.consumer,)
    heir = (order.heir.id,) if order.heir else ()
    return (order.consumer, *heir, *((order.returns,) if order.returns else ()))


RUNS = (AttemptState.BUILDING, AttemptState.BUILT, AttemptState.STARTING)
# The source is stopped when the destination receives the instance, and starts again only after its return.
COLD = ("migrate", "resize")
# A host that is up again says so by its next heartbeat; a scheduler may hear that late, or just start.
KNOWN_TO_BE_UP_S = 10.0
# A fault sets the clock of a process by a few seconds, more than once.
CLOCKS_DIFFER_S = 13.0


class MovesInCells:
    """Checks what the hosts of cells are told during moves."""

    def __init__(self, findings: Findings, real_instances: RealInstances) -> None:
        self._findings = findings
        self._real_instances = real_instances

    def follow(self, before: Instance | None, row: Instance) -> None:
        known = set() if before is None else {each.sequence for each in before.outbox}
        for pending in row.outbox:
            if pending.sequence not in known and isinstance(pending.message, ReceiveInstance):
                self._check_received(row, pending.message)
            if pending.sequence not in known and isinstance(pending.message, SpawnInstance):
                self._check_image(row, pending.message)
        if row.moving is not None and row.move is not None and row.move.kind in COLD:
            self._check_stopped(row, row.moving)

    def _check_received(self, row: Instance, order: ReceiveInstance) -> None:
        state = self._real_instances.state_of(row.id, order.source, order.source_attempt)
        self._findings.count(MOVE, "received live" if order.live else "received")
        if (
            state is None
            or state is AttemptState.STOPPED
            or (order.live and state in (AttemptState.BUILT, AttemptState.STOPPED))
        ):
            return
        self._findings.breaks(
            "a host receives what another has",
            f"{short_id(row.id)} is to be received as attempt {order.attempt}, and attempt {order.source_attempt} is "
            f"{state.value}",
        )

    def _check_image(self, row: Instance, order: SpawnInstance) -> None:
        if not row.saved:
            return
        self._findings.count(MOVE, "built from its image")
        if order.image is None or order.image.source not in self._real_instances.saved:
            self._findings.breaks(
                "an offloaded instance is built from its image",
                f"{short_id(row.id)} is built from {order.image}, and was saved as {row.saved}",
            )

    def _check_stopped(self, row: Instance, moving: Moving) -> None:
        if row.state != "moved" and moving.step not in ("receiving", "leaving"):
            return
        source = moving.source
        state = self._real_instances.state_of(row.id, source.share.host, moving.source_attempt)
        if state in RUNS:
            self._findings.breaks(
                "an active instance runs on one host",
                f"{short_id(row.id)} is {row.state} ({moving.step}), and {source.name} runs it, too",
            )


class MovesOfRequests:
    """Checks how moves end in the rows of the API level."""

    def __init__(self, findings: Findings, hosts: HostHistories, calm_from_s: float) -> None:
        """From `calm_from_s` on nothing fails but hosts."""
        self._findings = findings
        self._hosts = hosts
        self._calm_from_s = calm_from_s
        # How each move has ended, by its instance and its request.
        self._ended: dict[tuple[InstanceId, RequestId], str] = {}

    def follow(self, before: InstanceRow | None, row: InstanceRow) -> None:
        move = row.told.move
        was = None if before is None else before.told.move
        if move is not None:
            self._check_ends_once(row.id, move, waits=row.move_waits)
            if row.told.state == "moving" and (before is None or before.told.state != "moving"):
                self._check_source(row, move)
            if before is not None and before.move_waits and not row.move_waits:
                how = move.outcome or ("begun" if row.told.state == "moving" else row.told.state)
                self._findings.count(MOVE, f"waited, then {how}")
            elif row.move_waits and before is not None and not before.move_waits:
                again = was is not None and was.request_id == move.request_id
                self._findings.count(MOVE, "waits again" if again else f"{move.kind} waits")
        if move is None or move == was:
            return
        was_under_way = (
            before is not None and before.told.state == "moving" and was is not None and not was.asked
        )
        if move.outcome == "failed" and was_under_way:
            self._check_waits_again(row, move)
        if was is not None and was.number == move.number and was.outcome and was.outcome != move.outcome:
            self._findings.breaks(
                "a move ends once", f"{short_id(row.id)}: the move was {was.outcome}, and is {move.outcome}"
            )
        # Deleted before its cell had the order to move, it is told as the cell knows it.
        is_going = row.told.state in ("deleting", "deleted")
        if was is not None and move.number < was.number and not is_going:
            self._findings.breaks("a move ends once", f"{short_id(row.id)} went back to move {move.number}")
        if move.outcome and (was is None or was.number != move.number or not was.outcome):
            self._findings.count(MOVE, f"{move.kind} {move.outcome}")

    def _check_waits_again(self, row: InstanceRow, move: Move) -> None:
        """Check that a move that may still wait for room does not fail because others got its room: no host has tried it."""
        told = row.told
        if told.state not in ("active", "stopped", "shelved", "offloaded"):
            return
        seconds_left = 0.0 if move.waits_until is None else (move.waits_until - self._now()).total_seconds()
        if (
            told.failures
            and all(each.is_refused for each in told.failures)
            and seconds_left > CLOCKS_DIFFER_S
        ):
            self._findings.breaks(
                "a move that has lost its room waits again",
                f"the {move.kind} of {short_id(row.id)} has failed, and might wait {seconds_left:.0f} s more: "
                f"{move.failure}",
            )

    def _now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._findings.now_s)

    def _check_source(self, row: InstanceRow, move: Move) -> None:
        """Check that an evacuation begins only while its source is down, as schedulers should know by now."""
        since_s = self._findings.now_s - KNOWN_TO_BE_UP_S
        if move.kind != "evacuate" or since_s < self._calm_from_s:
            return
        if self._hosts.was_up(move.source, row.told.cell, since_s):
            self._findings.breaks(
                "only what is on a host that is down is evacuated",
                f"{short_id(row.id)} is evacuated from {move.source}, which has been up since {since_s:.1f} s",
            )

    def _check_ends_once(self, instance: InstanceId, move: Move, *, waits: bool) -> None:
        """Check that a move that has ended neither waits nor goes on by a new number."""
        ended = self._ended.get((instance, move.request_id), "")
        if move.outcome:
            self._ended[instance, move.request_id] = move.outcome
        elif ended:
            now = "waits" if waits else "goes on"
            self._findings.breaks(
                "a move ends once", f"{short_id(instance)}: the {move.kind} was {ended}, and {now}"
            )


def without_outcome(row: InstanceRow) -> str:
    """The end that a move lacks although nothing goes on; empty if it lacks none."""
    move = row.told.move
    is_open = (
        move is not None
        and not move.outcome
        and row.told.state in ("active", "stopped", "shelved", "offloaded", "error")
    )
    return f"{short_id(row.id)} is {row.told.state}, and its move has no outcome" if is_open else ""


def of_classes(amounts: Iterable[ResourceAmount]) -> Counter[str]:
    """The sum of the amounts of each resource class over all providers: a reshape does not change it."""
    sums: Counter[str] = Counter()
    for each in amounts:
        sums[each.resource] += each.amount
    return sums
