"""Planted bugs in the daemons of bare metal."""

import asyncio
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from engine.inventories import ProviderId
from ironic_sync import deploying as deployer
from ironic_sync import membership, sweeping
from ironic_sync.applying import Change, NodeWriter
from ironic_sync.core import deploying, notifications, ordering, settling
from ironic_sync.core.rows import NodeRow
from ironic_sync.core.settling import seen
from ironic_sync.membership import Membership
from placement_worker.core import reports
from tests.planted.replacing import replaced


def epoch_not_checked() -> AbstractContextManager[None]:
    """Placement accepts every report, whatever ring epoch its reporter had."""
    return replaced(reports, "_outdated", lambda _real: lambda *_: None)


def stale_event_wins() -> AbstractContextManager[None]:
    """The last notification to arrive wins, however old it is."""

    def planted(real: Any) -> Any:
        return lambda row, said, rules: real(structs.replace(row, heard_at_us=0), said, rules)

    return replaced(ordering, "_after_node", planted)


def provider_deleted_on_rebalance() -> AbstractContextManager[None]:
    """A daemon that hands nodes over deletes their providers: the new owner will create them again."""

    def planted(real: Any) -> Any:
        def lost(self: Any, nodes: Any) -> None:
            real(self, nodes)
            _change(self._writer, nodes, lambda row: structs.replace(row, is_deleted=True))

        return lost

    return replaced(sweeping.Sweeper, "lost", planted)


def nodes_with_instances_given() -> AbstractContextManager[None]:
    """A daemon gives each node to the one with the highest score at once, also while an instance is on it."""

    def planted(real: Any) -> Any:
        def gives(owned: Any, members: Any, me: str) -> Any:
            as_free = [structs.replace(each, holds_instance=False) for each in owned]
            return tuple(structs.replace(each, only_free=False) for each in real(as_free, members, me))

        return gives

    return replaced(membership, "gives", planted)


def takeover_without_reading() -> AbstractContextManager[None]:
    """A new owner relies on the rows of its nodes without reading them from Ironic."""

    def planted(_real: Any) -> Any:
        def gained(self: Any, nodes: Any) -> None:
            _change(self._writer, (each.id for each in nodes), seen)

        return gained

    return replaced(sweeping.Sweeper, "gained", planted)


def start_counts_as_done() -> AbstractContextManager[None]:
    """A notification that a change has started counts as the change."""

    def planted(real: Any) -> Any:
        started = ("baremetal.node.update.start", "baremetal.node.maintenance_set.start")
        return {**real, **{each: structs.replace(real[each], treatment="taken") for each in started}}

    return replaced(notifications, "EVENTS", planted)


def lost_instance_not_told() -> AbstractContextManager[None]:
    """A conductor is not told that Ironic has deleted the node of an active instance."""
    return replaced(settling, "with_lost_instance", lambda _real: lambda row: row)


def changed_nodes_not_looked_for() -> AbstractContextManager[None]:
    """A daemon does not look for nodes that changed lately: what no notification tells it finds by comparing all nodes."""

    def planted(_real: Any) -> Any:
        async def look_for_changes(_self: Any) -> None:
            pass

        return look_for_changes

    return replaced(sweeping.Sweeper, "_look_for_changes", planted)


def claim_released_early() -> AbstractContextManager[None]:
    """An instance counts as gone as soon as Ironic has begun to remove it from the node."""

    def planted(real: Any) -> Any:
        def undeploying(deploy: Any, seen_: Any) -> Any:
            step = real(deploy, seen_)
            return deploying.Gone() if isinstance(step, deploying.WaitForNode) else step

        return undeploying

    return replaced(deploying, "_undeploying", planted)


def active_before_counts() -> AbstractContextManager[None]:
    """A rebuild counts as done as soon as the node is active, which it was before the rebuild."""

    def planted(real: Any) -> Any:
        def rebuilding(deploy: Any, order: Any, seen_: Any) -> Any:
            step = real(deploy, order, seen_)
            is_active = seen_.node is not None and seen_.node.provision_state == "active"
            return deploying.Finish() if is_active and not isinstance(step, deploying.Fail) else step

        return rebuilding

    return replaced(deploying, "_rebuilding", planted)


def lease_margin_ignored() -> AbstractContextManager[None]:
    """A daemon acts until its lease ends, without the safety margin."""

    def planted(real: Any) -> Any:
        return lambda self: real(self) + self._rules.lease_margin_s

    return replaced(Membership, "_lease_time_left_s", planted)


def outdated_answer_applied() -> AbstractContextManager[None]:
    """An answer of Ironic's API wins, even over a notification that was applied after the question."""
    return replaced(
        sweeping,
        "read_again",
        lambda real: lambda row, node, _version, at_us: real(row, node, row.version, at_us),
    )


def repeated_without_end() -> AbstractContextManager[None]:
    """A step that Ironic accepts, and that shows no effect, is repeated as long as nobody ends the deploy."""
    return replaced(deploying, "NO_EFFECT_MAX", lambda _real: 1_000_000)


def port_assumed_attached() -> AbstractContextManager[None]:
    """A port counts as attached as soon as Ironic has accepted it."""

    def planted(real: Any) -> Any:
        def after_step(seen_: Any, step: Any) -> Any:
            after = real(seen_, step)
            if isinstance(step, deploying.AttachVif):
                return structs.replace(after, vifs=(*(seen_.vifs or ()), step.vif))
            return after

        return after_step

    return replaced(deployer, "after_step", planted)


def _change(writer: NodeWriter, nodes: Iterable[ProviderId], change: Change) -> None:
    def made(row: NodeRow) -> NodeRow | None:
        return change(row) if row.version else None

    _UNDER_WAY.add(task := asyncio.ensure_future(writer.change(dict.fromkeys(nodes, made))))
    task.add_done_callback(_UNDER_WAY.discard)


_UNDER_WAY: set[asyncio.Future[Any]] = set()
