"""Planted bugs in the daemons of bare metal."""

import asyncio
from collections.abc import Iterable
from typing import Any

from msgspec import structs

from cell_conductor.core import decide, transition
from engine.hosts import NODE
from engine.inventories import ProviderId
from ironic_sync import deploying as deployer
from ironic_sync import membership, sweeping
from ironic_sync.applying import Change, NodeWriter
from ironic_sync.core import deploying, notifications, ordering, settling
from ironic_sync.core.rows import NodeRow
from ironic_sync.core.settling import seen
from ironic_sync.membership import Membership
from placement_worker.core import reports
from tests.planted.replacing import BARE_METAL, planted, planted_as, planted_by, rewritten

# Placement accepts every report, whatever ring epoch its reporter had.
planted_by("the epoch of a report not checked", reports, "_outdated", world=BARE_METAL, harm="destroyed")(
    lambda _real: lambda *_: None
)


# The last notification to arrive wins, however old it is.
planted_by("a stale event wins", ordering, "_after_node", world=BARE_METAL, harm="lost")(
    lambda real: lambda row, said, rules: real(structs.replace(row, heard_at_us=0), said, rules)
)


# A daemon that hands nodes over deletes their providers: the new owner will create them again.
@planted("a provider deleted on a rebalance", sweeping.Sweeper, "lost", world=BARE_METAL, harm="lost")
def provider_deleted_on_rebalance(real: Any, self: Any, nodes: Any) -> None:
    real(self, nodes)
    _change(self._writer, nodes, lambda row: structs.replace(row, is_deleted=True))


# A daemon gives each node to the one with the highest score at once, also while an instance is on it.
@planted("a node given with its instance", membership, "gives", world=BARE_METAL, harm="doubled")
def nodes_with_instances_given(real: Any, owned: Any, members: Any, me: str) -> Any:
    as_free = [structs.replace(each, holds_instance=False) for each in owned]
    return tuple(structs.replace(each, only_free=False) for each in real(as_free, members, me))


# A new owner relies on the rows of its nodes without reading them from Ironic.
@planted("a takeover without reading", sweeping.Sweeper, "gained", world=BARE_METAL, harm="destroyed")
def takeover_without_reading(_real: Any, self: Any, nodes: Any) -> None:
    _change(self._writer, (each.id for each in nodes), seen)


# A notification that a change has started counts as the change.
@planted_by("a started change counts as done", notifications, "EVENTS", world=BARE_METAL, harm="lost")
def start_counts_as_done(real: Any) -> Any:
    started = ("baremetal.node.update.start", "baremetal.node.maintenance_set.start")
    return {**real, **{each: structs.replace(real[each], treatment="taken") for each in started}}


# A conductor is not told that Ironic has deleted the node of an active instance.
planted_as("the instance of a deleted node stays active", world=BARE_METAL, harm="lost")(
    lambda: rewritten(settling, "with_lost_instance", "if done is None or", "if True or")
)


# A daemon does not look for nodes that changed lately: what no notification tells it finds by comparing all nodes.
@planted(
    "a lost notification found only by comparing all nodes",
    sweeping.Sweeper,
    "_look_for_changes",
    world=BARE_METAL,
)
async def changed_nodes_not_looked_for(_real: Any, _self: Any) -> None:
    pass


# An instance counts as gone as soon as Ironic has begun to remove it from the node.
@planted(
    "a claim released before its instance is off the node",
    deploying,
    "_undeploying",
    world=BARE_METAL,
    harm="overbooked",
)
def claim_released_early(real: Any, deploy: Any, seen_: Any) -> Any:
    step = real(deploy, seen_)
    return deploying.Gone() if isinstance(step, deploying.WaitForNode) else step


# A rebuild counts as done as soon as the node is active, which it was before the rebuild.
@planted(
    "the active state before a rebuild counts as its success",
    deploying,
    "_rebuilding",
    world=BARE_METAL,
    harm="lost",
)
def active_before_counts(real: Any, deploy: Any, order: Any, seen_: Any) -> Any:
    step = real(deploy, order, seen_)
    is_active = seen_.node is not None and seen_.node.provision_state == "active"
    return deploying.Finish() if is_active and not isinstance(step, deploying.Fail) else step


# A daemon acts until its lease ends, without the safety margin.
planted_by(
    "the margin of a lease ignored", Membership, "_lease_time_left_s", world=BARE_METAL, harm="doubled"
)(lambda real: lambda self: real(self) + self._rules.lease_margin_s)


# An answer of Ironic's API wins, even over a notification that was applied after the question.
planted_by(
    "an answer applied over a later notification", sweeping, "read_again", world=BARE_METAL, harm="lost"
)(lambda real: lambda row, node, _version, at_us: real(row, node, row.version, at_us))


# A step that Ironic accepts, and that shows no effect, is repeated as long as nobody ends the deploy.
planted_by("a step without effect repeated without end", deploying, "NO_EFFECT_MAX", world=BARE_METAL)(
    lambda _real: 1_000_000
)


# A port counts as attached as soon as Ironic has accepted it.
@planted("a port assumed to be attached", deployer, "after_step", world=BARE_METAL, harm="lost")
def port_assumed_attached(real: Any, seen_: Any, step: Any) -> Any:
    after = real(seen_, step)
    if isinstance(step, deploying.AttachVif):
        return structs.replace(after, vifs=(*(seen_.vifs or ()), step.vif))
    return after


# What ends a daemon's order by itself for a node is only whether Ironic's instance has ended, and not whether another lives there.
@planted(
    "a living instance wiped as the leftover of an ended one", settling, "with_leftover", harm="destroyed"
)
def living_wiped(real: Any, row: NodeRow) -> NodeRow:
    after = real(structs.replace(row, deployed=None, older_than=None))
    return row if after.deploy is row.deploy else structs.replace(row, deploy=after.deploy)


# A delete is over as soon as Ironic has no such instance on the node, whether it has taken it off or forgotten it.
planted_by("a delete done since a restored Ironic has forgotten it", deploying, "_is_forgotten", harm="lost")(
    lambda _real: lambda *_: False
)


# A delete is over as soon as Ironic answers 404 for the node, as for one that is younger than a backup.
@planted("a delete done since Ironic does not know the node", deploying, "_undeploying", harm="lost")
def delete_done_by_a_404(real: Any, deploy: Any, seen_: Any) -> Any:
    return deploying.Gone() if seen_.node is None else real(deploy, seen_)


# A late order to take an instance off a node that a restored Ironic has there wipes the one that lives there by the books.
@planted("a living instance wiped by a late undeploy of another", settling, "_is_on", harm="destroyed")
def living_wiped_by_late_order(real: Any, row: NodeRow, order: Any) -> bool:
    done = row.deployed
    is_other = done is not None and done.instance != order.instance
    return bool(real(structs.replace(row, deployed=None) if is_other else row, order))


# An order to destroy answers whatever a node says of an instance that its cell does not know.
planted_by("an instance destroyed since its node tells of it", decide, "_is_at_rest", harm="destroyed")(
    lambda _real: lambda _: False
)


# Daemons take off by themselves as much as they like.
planted_by("undeploys that nobody ordered without a limit", deployer, "why_not_unasked", harm="destroyed")(
    lambda _real: lambda *_: ""
)


# What an older copy of Ironic's database says of a node counts like all that Ironic says.
planted_by("a restored Ironic is believed", settling, "_with_age", harm="destroyed")(
    lambda _real: lambda _before, row: row
)


# A node is offered that Ironic believes to be free while an instance lives there by the books.
planted_by("a node sold that has a living instance", NodeRow, "discord", harm="overbooked")(
    lambda _real: property(lambda _: "")
)


# A refused adoption counts as an attempt that is over: what Ironic has on the node looks like its leftover.
@planted("what could not be adopted wiped as a leftover", settling, "_after_adopt", harm="destroyed")
def refused_adoption_ended(real: Any, row: NodeRow, order: Any, **named: Any) -> Any:
    after, answer = real(row, order, **named)
    return after if answer is None else settling.with_end(after, order.instance, order.attempt), answer


# So does one that was given back.
@planted("what was given back wiped as a leftover", settling, "_after_leave", harm="destroyed")
def given_back_ended(real: Any, row: NodeRow, order: Any) -> Any:
    after, answer = real(row, order)
    return settling.with_end(after, order.instance, order.attempt), answer


# The order to adopt an instance comes once more after it was given back.
planted_by("a late order adopts what was given back", settling, "_is_left", harm="doubled")(
    lambda _real: lambda *_: False
)


# A daemon adopts whatever it is told to, and does not ask what Ironic has there.
planted_by(
    "an instance adopted that Ironic does not have there", settling, "_why_not_adopted", harm="doubled"
)(lambda _real: lambda *_: "")


# Bare-metal nodes are cleaned up as always, also for an instance that is given back.
@planted("a node given back is undeployed", transition, "destroy_order", harm="destroyed")
def given_back_undeployed(real: Any, *values: Any, keeps_guest: bool = False, **named: Any) -> Any:
    kind = values[4]
    return real(*values, keeps_guest=keeps_guest and kind != NODE, **named)


def _change(writer: NodeWriter, nodes: Iterable[ProviderId], change: Change) -> None:
    def made(row: NodeRow) -> NodeRow | None:
        return change(row) if row.version else None

    _UNDER_WAY.add(task := asyncio.ensure_future(writer.change(dict.fromkeys(nodes, made))))
    task.add_done_callback(_UNDER_WAY.discard)


_UNDER_WAY: set[asyncio.Future[Any]] = set()
