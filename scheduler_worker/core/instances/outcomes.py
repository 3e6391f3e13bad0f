"""The outcomes of a search for a host, and an instance's row after each of them."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import Struct, structs

from bus.message import ProviderId
from bus.messages.build import BuildInstance, ClaimRefused, Flavor, FlavorPassedOver, NoValidHost
from bus.messages.cell import Choice, PlaceInCell
from bus.messages.hosts import NODE
from bus.messages.placement import ServerGroup
from scheduler_worker.core.instances.lifecycle import deleted, failed, placed, waits, waits_on
from scheduler_worker.core.instances.rows import PLACED, HostDecision, InstanceRow, KeptRequest


class Holds(Struct, frozen=True):
    """The outcome of a search that found a host: placement has granted the share of `choice` for this attempt. `is_new`
    is false if the instance held the share already, by an earlier claim.
    """

    cell: str
    attempt: int
    choice: Choice
    alternates: tuple[Choice, ...] = ()
    is_new: bool = False
    # How many hosts there were, and how many of them qualified; 0 for a claim of an earlier try.
    hosts: int = 0
    qualified: int = 0
    # The flavors of alternates that are for another flavor than the choice, by host.
    other_flavors: Mapping[ProviderId, Flavor] = {}


class SearchRefused(Struct, frozen=True):
    """The outcome of a search that ends without a host, except `NoValidHost`: that says that no host qualifies.

    A request that wants all of its instances placed or none is refused if some of them find no host. Then
    `no_valid_host` is the funnel of one of these. With `may_pass`, the same search may find a host later.
    """

    reason: str
    no_valid_host: NoValidHost | None = None
    may_pass: bool = False


class Timeouts(NamedTuple):
    """The seconds that a build without a deadline of its own may take, by the kind of its host."""

    hypervisor_s: int
    node_s: int


class EndedElsewhere(Struct, frozen=True):
    """The outcome of a search whose instance another worker has ended: placement refuses the claim as released."""

    reason: str = "its claim had been released before it was granted"


Outcome = Holds | NoValidHost | SearchRefused | EndedElsewhere


class FlavorFound(NamedTuple):
    """The flavor that an instance gets of several that its request accepts; `spec` is what it needs, encoded. If there is no
    host, it is the last one that was tried.
    """

    flavor: Flavor
    spec: bytes
    passed_over: tuple[FlavorPassedOver, ...]


def after_search(
    row: InstanceRow,
    build: BuildInstance,
    outcome: Outcome | None,
    refusals: Sequence[ClaimRefused],
    now: datetime,
    *,
    timeouts: Timeouts,
    group: ServerGroup | None = None,
    kept: KeptRequest | None = None,
    found: FlavorFound | None = None,
) -> InstanceRow | None:
    """The row after its search had this outcome. None if the row was decided otherwise meanwhile, or if there is no
    outcome. With `kept`, an instance for which there is no room now begins to wait. `found` is given for a request that
    accepts several flavors.
    """
    after: InstanceRow | None
    match outcome:
        case Holds():
            order = _order(row, build, outcome, _ends_by(row, build, outcome, now, timeouts), group)
            host = outcome.choice.name
            # A host may be here several times, with other ways to take the amounts.
            others = tuple(dict.fromkeys([each.name for each in outcome.alternates]))
            decision = HostDecision(now, outcome.hosts, outcome.qualified, host, others)
            after = placed(row, order, host, now, refusals=tuple(refusals), decision=decision)
        case NoValidHost() | SearchRefused():
            why = _refused(outcome)
            after = _without_host(row, build, why, refusals, now, kept=kept if why.may_pass else None)
        case EndedElsewhere(reason):
            after = deleted(row, now, reason) if row.is_open else None
        case None:
            after = None
    return after if after is None or found is None else _with_flavor(after, found)


def _with_flavor(row: InstanceRow, found: FlavorFound) -> InstanceRow:
    """The row of an instance that was decided, with what became of the flavors that its request accepts."""
    told = structs.replace(row.told, passed_over=found.passed_over)
    if told.state != PLACED:
        return structs.replace(row, told=told)
    return structs.replace(
        row,
        told=structs.replace(told, flavor=found.flavor),
        order=None if row.order is None else structs.replace(row.order, tells_flavor=True),
        resized_spec=found.spec if found.passed_over else b"",
    )


def after_failed_wake(
    row: InstanceRow,
    outcome: NoValidHost | SearchRefused,
    refusals: Sequence[ClaimRefused],
    found: FlavorFound | None = None,
) -> InstanceRow | None:
    """The row of an instance that goes on waiting after this search; None if it failed for the same reasons as the last one."""
    why = _refused(outcome)
    return waits_on(
        row,
        reason=why.reason,
        no_valid_host=why.no_valid_host,
        refusals=tuple(refusals),
        passed_over=() if found is None else found.passed_over,
    )


def _refused(why: NoValidHost | SearchRefused) -> SearchRefused:
    return SearchRefused("no valid host", why, may_pass=True) if isinstance(why, NoValidHost) else why


def _without_host(
    row: InstanceRow,
    build: BuildInstance,
    why: SearchRefused,
    refusals: Sequence[ClaimRefused],
    now: datetime,
    *,
    kept: KeptRequest | None,
) -> InstanceRow | None:
    if kept is None or build.wait is None:
        return failed(row, now, reason=why.reason, no_valid_host=why.no_valid_host, refusals=tuple(refusals))
    priority = build.wait.priority
    return waits(row, now, kept, priority=priority, reason=why.reason, no_valid_host=why.no_valid_host)


def _ends_by(
    row: InstanceRow, build: BuildInstance, holds: Holds, now: datetime, timeouts: Timeouts
) -> datetime:
    """The moment by which the cell must have built the instance. It is counted from the acceptance of the request; for
    a request that may wait for room, from now. A request without a deadline gets the longer time of nodes if one of the hosts
    chosen for it is a node.
    """
    may_get_node = NODE in [each.kind for each in (holds.choice, *holds.alternates)]
    if build.wait is None and (build.deadline_s is not None or not may_get_node):
        return row.ends_by
    seconds = build.deadline_s or (timeouts.node_s if may_get_node else timeouts.hypervisor_s)
    return (row.issued_at if build.wait is None else now) + timedelta(seconds=seconds)


def _order(
    row: InstanceRow, build: BuildInstance, holds: Holds, ends_by: datetime, group: ServerGroup | None
) -> PlaceInCell:
    assert build.flavor is not None, "a request without a flavor is rejected"
    return PlaceInCell(
        cell=holds.cell,
        instance=row.id,
        request_id=row.told.request_id,
        sequence=row.told.sequence + 1,
        attempt=holds.attempt,
        issued_at=row.issued_at,
        ends_by=ends_by,
        flavor=build.flavor,
        chosen=holds.choice,
        alternates=holds.alternates,
        name=row.told.name,
        project=build.project,
        user=build.user,
        image_properties=build.image_properties,
        group=group,
        image=build.image,
        config_drive=build.config_drive,
        ports=build.ports,
        other_flavors=dict(holds.other_flavors),
        may_ask=True,
    )
