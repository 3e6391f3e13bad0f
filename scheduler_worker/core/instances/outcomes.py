"""The outcomes of a search for a host, and an instance's row after each of them."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from bus.messages.build import BuildInstance, ClaimRefused, NoValidHost
from bus.messages.cell import Choice, PlaceInCell
from bus.messages.hosts import NODE
from bus.messages.placement import ServerGroup
from scheduler_worker.core.instances.lifecycle import deleted, failed, placed
from scheduler_worker.core.instances.rows import Decision, InstanceRow


class Holds(Struct, frozen=True):
    """Placement granted it this share of a host, for this attempt. `is_new`: it held nothing before this claim."""

    cell: str
    attempt: int
    choice: Choice
    alternates: tuple[Choice, ...] = ()
    is_new: bool = False
    # How many hosts there were, and how many of them qualified; 0 for a claim of an earlier try.
    hosts: int = 0
    qualified: int = 0


class Refused(Struct, frozen=True):
    """It gets no host, for another reason than a lack of hosts."""

    reason: str


class EndedElsewhere(Struct, frozen=True):
    """Another worker has ended the instance: its claim is refused as released."""

    reason: str = "its claim had been released before it was granted"


Outcome = Holds | NoValidHost | Refused | EndedElsewhere


def after_search(
    row: InstanceRow,
    build: BuildInstance,
    outcome: Outcome | None,
    refusals: Sequence[ClaimRefused],
    now: datetime,
    *,
    node_timeout_s: int,
    group: ServerGroup | None = None,
) -> InstanceRow | None:
    """The row with this outcome; None if the row was decided otherwise meanwhile, or there is no outcome."""
    match outcome:
        case Holds():
            order = _order(row, build, outcome, node_timeout_s, group)
            host = outcome.choice.name
            # A host may be here several times, with other ways to take the amounts.
            others = tuple(dict.fromkeys([each.name for each in outcome.alternates]))
            decision = Decision(now, outcome.hosts, outcome.qualified, host, others)
            return placed(row, order, host, now, refusals=tuple(refusals), decision=decision)
        case NoValidHost():
            return failed(row, now, reason="no valid host", no_valid_host=outcome)
        case Refused(reason):
            return failed(row, now, reason=reason)
        case EndedElsewhere(reason):
            return deleted(row, now, reason) if row.is_open else None
        case None:
            return None


def _order(
    row: InstanceRow, build: BuildInstance, holds: Holds, node_timeout_s: int, group: ServerGroup | None
) -> PlaceInCell:
    assert build.flavor is not None, "a request without a flavor is rejected"
    ends_by = row.ends_by
    # Counted from the acceptance. A request without a deadline that may be built on a node gets a node's time.
    if build.deadline_s is None and NODE in [each.kind for each in (holds.choice, *holds.alternates)]:
        ends_by = row.issued_at + timedelta(seconds=node_timeout_s)
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
    )
