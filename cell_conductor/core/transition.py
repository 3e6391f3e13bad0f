"""One step of one instance: the changes of its row, and the messages that they cause.

Messages are kept on the row, each with a sequence of its own, so that they can be sent again until the broker has
confirmed them. Only `answers` are not kept: if one is lost, the host repeats the report that it
answers.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import structs

from bus.messages.build import (
    AlternatesSpent,
    AttemptFailed,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceMoved,
    InstanceState,
    Move,
    Rebuild,
)
from bus.messages.cell import (
    DeployInstance,
    DestroyInstance,
    LeaveGuest,
    LeaveNode,
    PlaceInCell,
    RedeployInstance,
    RespawnInstance,
    SpawnInstance,
    UndeployInstance,
)
from bus.messages.placement import ReleaseClaim
from cell_conductor.core.rows import (
    ADOPTS,
    ALL_UP,
    MOVES,
    REBUILDS,
    SPAWNS,
    Cleanup,
    ConductorRules,
    Destroy,
    DrawId,
    HeldClaim,
    HostOrder,
    HostStates,
    Instance,
    Moving,
    OutboxMessage,
    Pending,
    Rebuilding,
    Saves,
    Spawn,
    State,
    choices_of,
    flavor_of,
    kind_of,
)
from engine.flavors import Image, InstanceId
from engine.hosts import NODE
from engine.inventories import Choice, ProviderId

# The event that tells the API level of a state.
_TOLD_BY: Mapping[State, type[InstanceActive | InstanceMoved | InstanceFailed | InstanceDeleted]] = {
    "active": InstanceActive,
    "moved": InstanceMoved,
    "stopped": InstanceMoved,
    "shelved": InstanceMoved,
    "offloaded": InstanceMoved,
    "broken": InstanceFailed,
    "error": InstanceFailed,
    "deleted": InstanceDeleted,
}


class Transition:
    def __init__(
        self, row: Instance, now: datetime, rules: ConductorRules, draw: DrawId, hosts: HostStates = ALL_UP
    ) -> None:
        self.row = row
        self.now = now
        self.rules = rules
        self.draw = draw
        self.hosts = hosts
        self.said: list[Pending] = []
        # Not kept on the row: the message that caused it will cause it again when repeated.
        self.answers: list[Destroy] = []
        self.is_over = False
        # Why conductors have given up the order that is decided on now; empty if they have not.
        self.given_up = ""

    def change(self, **changes: Any) -> None:
        if "state" in changes:
            changes.setdefault("changed_at", self.now)
            changes.setdefault("state_ends_at", None)
        if "attempt" in changes and self.row.heir is not None:
            # An heir takes over from one attempt only.
            changes.setdefault("heir", None)
        self.row = structs.replace(self.row, **changes)

    # Fields that may be None, but not in the states in which decisions read them here

    @property
    def order(self) -> PlaceInCell:
        assert self.row.order is not None, "an instance that is built was placed"
        return self.row.order

    @property
    def host(self) -> Choice:
        assert self.row.host is not None, "an attempt has a host"
        return self.row.host

    @property
    def rebuild(self) -> Rebuild:
        assert self.row.rebuild is not None, "an instance that is rebuilt has a rebuild"
        return self.row.rebuild

    @property
    def move(self) -> Move:
        assert self.row.move is not None, "an instance that moves has a move"
        return self.row.move

    @property
    def moving(self) -> Moving:
        assert self.row.moving is not None, "an instance that moves has a move"
        return self.row.moving

    def why_not_begun(self, by: datetime) -> str:
        """Why an order that was to begin by this time ends at once. Empty if it does not."""
        late = "the order reached its cell after the deadline" if self.now >= by else ""
        return self.given_up or late

    # Changes

    def continue_from(self, sequence: int) -> None:
        """Number the instance's messages on from this sequence, which the API level has reached.

        Readers drop states with lower sequences.
        """
        self.change(sequence=max(self.row.sequence, sequence))

    def send(self, message: OutboxMessage, **changes: Any) -> None:
        """Send a message and keep it on the row, together with these changes of the row."""
        pending = Pending(self.row.sequence + 1, self.now, message)
        self.said.append(pending)
        self.change(sequence=pending.sequence, outbox=(*self.row.outbox, pending), **changes)

    def withdraw(self, orders: tuple[type[HostOrder], ...], *, attempt: int) -> None:
        """Drop orders of these kinds about this attempt from the row, so that they are not sent again.

        They have been answered, so they have arrived; or they do not apply any more.
        """
        outbox = self.outbox_without(orders, attempt)
        if len(outbox) < len(self.row.outbox):
            self.change(outbox=outbox)

    def outbox_without(self, orders: tuple[type[HostOrder], ...], attempt: int) -> tuple[Pending, ...]:
        """The row's outbox without the orders that `withdraw` drops, for a caller that changes the row anyway."""
        return tuple(
            [
                each
                for each in self.row.outbox
                if not (isinstance(each.message, orders) and each.message.attempt == attempt)
            ]
        )

    # Orders

    def spawn(self) -> None:
        """Order the current host to build the instance, within the time for an attempt and by the deadline."""
        ends_at = min(self.now + self.rules.time_to_build(self.host), self.row.ends_by)
        self.send(spawn_order(self.row, self.order, self.host), state="building", state_ends_at=ends_at)

    def why_silent(self) -> str:
        seconds = self.rules.time_to_build(self.host).total_seconds()
        return f"no message from the host within {seconds:g} s"

    def wait_longer(self, ends_by: datetime) -> None:
        """Give the current host its whole time for the next message again, but no longer than until the deadline
        `ends_by`.
        """
        self.change(state_ends_at=min(self.now + self.rules.time_to_build(self.host), ends_by))

    def destroy(self, attempt: int, host: ProviderId, saved_until: int = 0) -> None:
        if self.hosts.is_dead(host):
            # It has nothing to destroy; if it returns, it is asked what it has.
            return
        if order := self._missing_destroy(attempt, host, kind_of(self.row, host), saved_until):
            self.send(order)

    def answer_by_destroy(self, attempt: int, host: ProviderId, kind: str) -> None:
        """Order a host to destroy an attempt which it has reported, and which nothing waits for.

        This order is not kept on the row: if it is lost, the repeated report causes it again.
        """
        if order := self._missing_destroy(attempt, host, kind):
            self.answers.append(order)

    def wait_for_destroy(self) -> None:
        """Go to the state `deleting`, which ends when the host confirms the removal, or does not do so in time."""
        self.change(state="deleting", state_ends_at=self.now + self.rules.time_to_destroy(self.row.host))

    def _missing_destroy(
        self, attempt: int, host: ProviderId, kind: str, saved_until: int = 0
    ) -> Destroy | None:
        """The order to a host to destroy this attempt; None if the row has the same order, unconfirmed, already."""
        order = destroy_order(
            self.rules.cell,
            self.row.id,
            attempt,
            host,
            kind,
            keeps_guest=self.row.given_back,
            saved_until=saved_until,
        )
        return None if any(pending.message == order for pending in self.row.outbox) else order

    def release(self, held: Iterable[HeldClaim], *, leaves_group: bool = False) -> None:
        """Release these claims; or only have them leave the group of the instance, and stay held."""
        for each in held:
            self.send(
                ReleaseClaim(
                    cell=self.rules.cell,
                    consumer=each.consumer,
                    attempt=each.attempt,
                    issued_at=self.now,
                    leaves_group=leaves_group,
                )
            )

    def leave_group(self, *held: HeldClaim) -> None:
        """Have these claims leave the affinity group of the instance, if it has one: what holds them never comes back to be
        with the others, and would keep them from moving and new members from joining. They stay held.

        In other groups they go on counting, since a silent host may still run the instance.
        """
        group = None if self.row.order is None else self.row.order.group
        if group is not None and "affinity" in group.policies and "anti-affinity" not in group.policies:
            self.release(held, leaves_group=True)

    # Cleaning up hosts

    def clean_up(self, *release: HeldClaim) -> None:
        """Order the current host to destroy the instance. These claims are released when it has done so."""
        self.clean_up_host(self.row.host_attempt, self.host.share.host, *release)

    def clean_up_host(
        self, attempt: int, host: ProviderId, *release: HeldClaim, saved_until: int = 0
    ) -> None:
        """Order this host to destroy an attempt of the instance. These claims are released when it has done so, and those
        that wait for that already: they may be of an earlier attempt there, whose own cleanup has ended.

        A claim that waits for several hosts is released when the last of them has cleaned up. Images of the instance that moves up
        to `saved_until` have saved go, too.
        """
        before = self.row.cleanups
        others = tuple(each for each in before if (each.attempt, each.host) != (attempt, host))
        same = [each for each in before if each not in others]
        waiting = [claim for each in same for claim in each.release]
        until = max([saved_until, *[each.saved_until for each in same]])
        cleanup = Cleanup(attempt, host, tuple(dict.fromkeys((*release, *waiting))), until)
        self.change(cleanups=(*others, cleanup), remind_at=self.now + self.rules.remind_every)
        self.withdraw((*SPAWNS, *ADOPTS, *REBUILDS, *MOVES), attempt=attempt)
        if not any(each.saved_until == until for each in same):
            self.destroy(attempt, host, until)

    def forget_saved(self, attempt: int) -> None:
        """Have a host remove the images as which the instance was saved. The order names an attempt that must not run there."""
        saves = self.row.saves
        if saves is not None and not self.row.given_back:
            self.change(saves=None)
            self.remove_images(attempt, saves)

    def remove_images(self, attempt: int, saves: Saves) -> None:
        """The hosts of a cell share the images. So any of them may be asked: its present host, the one that has saved it, or one that
        it was placed on; rather one that is not lost, and none that is dead.
        """
        row = self.row
        present = () if row.host is None else (row.host.share.host,)
        named = (*present, saves.host, *[each.share.host for each in choices_of(row.order)])
        if hosts := [each for each in named if not self.hosts.is_dead(each)]:
            lost = self.hosts.lost()
            host = min(hosts, key=lambda each: each.int in lost)
            self.clean_up_host(attempt, host, saved_until=saves.number)

    def free_share(self) -> bool:
        """Free the instance's share: at once if its host has nothing of it, otherwise when the host has cleaned up.

        Returns whether the share is free already.

        While placement is asked for a swap, it may have granted the swap without the cell knowing. So the claim of the
        next attempt is released, which ends the claim of the present one, too. If a silent host may still have the
        instance, both the heir's claim on that host and the instance's own are released only when that host has cleaned
        up.
        """
        row = self.row
        own = HeldClaim(row.id, row.last_attempt)
        if row.state == "swapping" and not row.must_clean_up:
            self.release((own,))
            return True
        if row.state in ("error", "offloaded") or row.host is None:
            return True
        if row.state == "swapping":
            self.clean_up(self.heir_claim(), own)
        else:
            self.clean_up(own)
        return False

    # Heirs

    def name_heir(self) -> HeldClaim:
        """Draw the id of the heir of this attempt, unless that was done before. Returns the claim that it will have."""
        if self.row.heir is None:
            self.change(heir=self.draw())
        return self.heir_claim()

    def heir_claim(self) -> HeldClaim:
        """The claim of the heir of this attempt."""
        assert self.row.heir is not None, "an heir is named before it is asked for"
        return HeldClaim(self.row.heir, self.row.attempt)

    def hold_nothing(self, attempt: int) -> None:
        """Note that the instance has no host, and that its claims are released up to this attempt: the next claim needs a
        later one.
        """
        self.change(attempt=attempt, host=None, kept_attempt=0)

    # Ends

    def failed(self, host: str, reason: str, *, attempt: int, is_refused: bool = False) -> None:
        failed = AttemptFailed(attempt=attempt, host=host, reason=reason, is_refused=is_refused)
        self.change(failures=(*self.row.failures, failed))

    def ask_for_alternates(self) -> None:
        """Keep the claim, and ask the API level for further alternates; until the deadline, if it does not answer."""
        self.change(state="swapping", alternates=(), tries=0, state_ends_at=self.row.ends_by)
        asking = self.row.sequence + 1
        event = AlternatesSpent(cell=self.rules.cell, instance=state_of(self.row, self.rules.cell, asking))
        self.send(event, spent=asking)

    def end_as(self, state: State, **changes: Any) -> None:
        """Go to this state, with these changes of the row, and tell the API level."""
        self.change(state=state, **changes)
        cell = self.rules.cell
        self.send(_TOLD_BY[state](cell=cell, instance=state_of(self.row, cell, self.row.sequence + 1)))

    def end_offloaded(self) -> None:
        self.end_as("offloaded", alternates=())

    def end_broken(self, reason: str) -> None:
        """End as `broken`: the API level sees an error, and the instance keeps its host and its share."""
        self.end_as("broken", reason=reason)

    def end_in_error(self, reason: str) -> None:
        self.end_as("error", reason=reason, alternates=())

    def end_deleted(self, reason: str = "") -> None:
        self.end_as(
            "deleted",
            reason=reason,
            alternates=(),
            state_ends_at=self.now + self.rules.kept_after_end,
        )


def _host_of_broken(row: Instance) -> str:
    if row.is_stranded and row.moving is not None:
        return row.moving.source.name
    return row.host.name if row.host else ""


def state_of(row: Instance, cell: str, sequence: int) -> InstanceState:
    """The full state of an instance, as readers outside of its cell know it: in their words for its states."""
    order, state = row.order, row.state
    is_broken = state == "broken"
    told = "building" if state == "swapping" else "error" if is_broken else state
    host = row.host if state in ("active", "moved", "stopped", "shelved") else None
    return InstanceState(
        id=row.id,
        request_id=row.request_id,
        sequence=sequence,
        state="moving" if row.is_unshelving else told,
        cell=cell,
        host=_host_of_broken(row) if is_broken else host.name if host else "",
        attempt=row.attempt,
        name=order.name if order else "",
        project=order.project if order else "",
        failures=row.failures,
        reason=row.reason,
        changed_at=row.changed_at,
        keeps_share=is_broken or (state in ("deleted", "offloaded", "error") and row.keeps_share),
        rebuild=row.rebuild,
        move=row.move,
        flavor=flavor_of(row, order) if order is not None and order.tells_flavor else None,
    )


# The orders to hosts.


def destroy_order(
    cell: str,
    instance: InstanceId,
    attempt: int,
    host: ProviderId,
    kind: str,
    *,
    keeps_guest: bool = False,
    saved_until: int = 0,
) -> Destroy:
    """The order to remove everything of the attempt from a host, which may be a bare-metal node. With `keeps_guest`, the host
    only forgets the attempt.
    """
    if keeps_guest:
        leaves = LeaveNode if kind == NODE else LeaveGuest
        return leaves(cell=cell, instance=instance, attempt=attempt, host=host)
    if kind == NODE:
        return UndeployInstance(cell=cell, instance=instance, attempt=attempt, host=host)
    return DestroyInstance(cell=cell, instance=instance, attempt=attempt, host=host, saved_until=saved_until)


def spawn_order(row: Instance, order: PlaceInCell, host: Choice) -> Spawn:
    """The order to this host to build the instance, as the row's attempt."""
    if host.kind == NODE:
        return _deploy_order(row, order, host)
    evacuated = row.moving if row.move is not None and row.move.kind == "evacuate" else None
    return SpawnInstance(
        cell=order.cell,
        instance=row.id,
        attempt=row.attempt,
        host=host.share.host,
        flavor=flavor_of(row, order),
        share=host.share,
        name=order.name,
        project=order.project,
        image=Image(source=row.saved) if row.saved else row.image or order.image,
        from_saved=bool(row.saved),
        stopped=row.moving is not None and row.moving.was == "stopped",
        image_properties=order.image_properties if row.image_properties is None else row.image_properties,
        config_drive=order.config_drive,
        ports=order.ports,
        source=None if evacuated is None else evacuated.source.share.host,
        source_attempt=0 if evacuated is None else evacuated.source_attempt,
    )


def _properties_with(rebuild: Rebuild, order: PlaceInCell) -> dict[str, str]:
    """The properties that count with the image of this rebuild: those of the boot if it says none."""
    return order.image_properties if rebuild.image_properties is None else rebuild.image_properties


def _deploy_order(row: Instance, order: PlaceInCell, node: Choice) -> DeployInstance:
    return DeployInstance(
        cell=order.cell,
        instance=row.id,
        attempt=row.attempt,
        host=node.share.host,
        flavor=flavor_of(row, order),
        share=node.share,
        name=order.name,
        project=order.project,
        user=order.user,
        image_properties=order.image_properties,
        image=order.image,
        config_drive=order.config_drive,
        ports=order.ports,
    )


def rebuild_order(row: Instance, order: PlaceInCell, host: Choice, rebuild: Rebuild) -> Rebuilding:
    """The order to this host to build the instance anew from the rebuild's image; everything else stays as it was."""
    if host.kind == NODE:
        return _redeploy_order(row, order, host, rebuild)
    return RespawnInstance(
        cell=order.cell,
        instance=row.id,
        attempt=row.host_attempt,
        host=host.share.host,
        number=rebuild.number,
        flavor=flavor_of(row, order),
        share=host.share,
        image=rebuild.image,
        name=order.name,
        project=order.project,
        image_properties=_properties_with(rebuild, order),
        config_drive=order.config_drive,
        ports=order.ports,
    )


def _redeploy_order(row: Instance, order: PlaceInCell, node: Choice, rebuild: Rebuild) -> RedeployInstance:
    return RedeployInstance(
        cell=order.cell,
        instance=row.id,
        attempt=row.host_attempt,
        host=node.share.host,
        number=rebuild.number,
        flavor=flavor_of(row, order),
        image=rebuild.image,
        name=order.name,
        image_properties=_properties_with(rebuild, order),
        config_drive=order.config_drive,
    )
