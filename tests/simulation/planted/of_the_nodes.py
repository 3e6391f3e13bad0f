"""Of the daemons that look after bare-metal nodes, planted."""

import asyncio
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from bus.message import ProviderId
from ironic_sync import sweeping
from ironic_sync.applying import Change, NodeKeeper
from ironic_sync.core import deploying, notifications, ordering
from ironic_sync.core.rows import NodeRow
from ironic_sync.core.settling import seen
from ironic_sync.membership import Membership
from placement_worker.core import reports
from tests.simulation.replacing import replaced


def epoch_not_looked_at() -> AbstractContextManager[None]:
    """Placement takes every report, whoever was the node's owner when it was made."""
    return replaced(reports, "_outdated", lambda _real: lambda *_: None)


def stale_event_wins() -> AbstractContextManager[None]:
    """The last notification to come counts, however old it is."""

    def by(real: Any) -> Any:
        return lambda row, said, rules: real(structs.replace(row, heard_at_us=0), said, rules)

    return replaced(ordering, "_after_node", by)


def provider_deleted_on_rebalance() -> AbstractContextManager[None]:
    """A daemon that loses nodes takes their providers out of placement: whoever has them now will bring them back."""

    def by(real: Any) -> Any:
        def lost(self: Any, nodes: Any) -> None:
            real(self, nodes)
            _change(self._keeper, nodes, lambda row: structs.replace(row, is_deleted=True))

        return lost

    return replaced(sweeping.Sweeper, "lost", by)


def takeover_without_reading() -> AbstractContextManager[None]:
    """A new owner goes on with what is written of its nodes."""

    def by(_real: Any) -> Any:
        def gained(self: Any, nodes: Any) -> None:
            _change(self._keeper, (each.id for each in nodes), seen)

        return gained

    return replaced(sweeping.Sweeper, "gained", by)


def start_believed() -> AbstractContextManager[None]:
    """What was asked of Ironic is taken for what is."""

    def by(real: Any) -> Any:
        started = ("baremetal.node.update.start", "baremetal.node.maintenance_set.start")
        return {**real, **{each: structs.replace(real[each], treatment="taken") for each in started}}

    return replaced(notifications, "EVENTS", by)


def claim_freed_early() -> AbstractContextManager[None]:
    """An instance counts as gone as soon as Ironic has begun to take it off the node."""

    def by(real: Any) -> Any:
        def undeploying(deploy: Any, seen_: Any) -> Any:
            step = real(deploy, seen_)
            return deploying.Gone() if isinstance(step, deploying.Wait) else step

        return undeploying

    return replaced(deploying, "_undeploying", by)


def active_before_believed() -> AbstractContextManager[None]:
    """A rebuild counts as done as soon as the node is active, which it was before."""

    def by(real: Any) -> Any:
        def rebuilding(deploy: Any, order: Any, seen_: Any) -> Any:
            step = real(deploy, order, seen_)
            is_active = seen_.node is not None and seen_.node.provision_state == "active"
            return deploying.Finish() if is_active and not isinstance(step, deploying.Fail) else step

        return rebuilding

    return replaced(deploying, "_rebuilding", by)


def lease_margin_ignored() -> AbstractContextManager[None]:
    """A daemon acts until its lease is over."""

    def by(real: Any) -> Any:
        return lambda self: real(self) + self._settings.lease_margin_s

    return replaced(Membership, "_lease_time_left_s", by)


def outdated_answer_applied() -> AbstractContextManager[None]:
    """What Ironic's API said counts, also where a notification was applied since it was asked."""
    return replaced(
        sweeping,
        "read_again",
        lambda real: lambda row, node, _version, at_us: real(row, node, row.version, at_us),
    )


def _change(keeper: NodeKeeper, nodes: Iterable[ProviderId], change: Change) -> None:
    def made(row: NodeRow) -> NodeRow | None:
        return change(row) if row.version else None

    _UNDER_WAY.add(task := asyncio.ensure_future(keeper.change(dict.fromkeys(nodes, made))))
    task.add_done_callback(_UNDER_WAY.discard)


_UNDER_WAY: set[asyncio.Future[Any]] = set()
