"""May an order about an aggregate be obeyed, and what is the aggregate then?"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import structs

from bus.message import AggregateId
from bus.messages.aggregates import METADATA_KEYS_MAX, Aggregate, SetAggregate
from scheduler_worker.core.aggregates.kept import KeptAggregate
from scheduler_worker.core.aggregates.metadata import ZONE, AggregateProblem, problem_of

# The aggregates of each host, by the host's name.
Memberships = Mapping[str, Collection[AggregateId]]
SHOWN_MAX = 3


def changed(
    order: SetAggregate, aggregates: Iterable[KeptAggregate], multipliers: Collection[str], now_us: int
) -> Aggregate | AggregateProblem:
    """The aggregate as the order leaves it, or why the order is refused. `aggregates` are all rows, with those of
    deleted aggregates.
    """
    rows = {each.id: each for each in aggregates}
    known = {id_: each.told for id_, each in rows.items() if not each.deleted_us}
    before = known.get(order.aggregate)
    metadata = _merged(before.metadata if before else {}, order.metadata)
    if (
        problem := _problem_of_name(order, known)
        or _problem_of_size(metadata)
        or problem_of(metadata, multipliers)
    ):
        return problem
    after = Aggregate(id=order.aggregate, name=before.name if before else order.name, metadata=metadata)
    if before is not None and structs.replace(before, sequence=0) == after:
        return before
    last = rows[order.aggregate].sequence if order.aggregate in rows else -1
    return structs.replace(after, sequence=max(now_us, last + 1))


def _merged(before: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**before, **changes}
    return {key: value for key, value in sorted(merged.items()) if value is not None}


def _problem_of_name(order: SetAggregate, known: Mapping[AggregateId, Aggregate]) -> AggregateProblem | None:
    before, name = known.get(order.aggregate), order.name
    if before is not None:
        is_same = name in ("", before.name)
        reason = f"the aggregate is called {before.name!r}, and keeps its name"
        return None if is_same else AggregateProblem("name", name, reason)
    if not name or name.strip() != name:
        reason = (
            f"there is no aggregate {order.aggregate}, and a new one needs a name without blanks around it"
        )
        return AggregateProblem("name", name, reason)
    for other in known.values():
        if name in (other.name, str(other.id)):
            return AggregateProblem("name", name, f"aggregate {other.id} has this name")
    return None


def _problem_of_size(metadata: Mapping[str, str]) -> AggregateProblem | None:
    if len(metadata) <= METADATA_KEYS_MAX:
        return None
    return AggregateProblem(
        "metadata", str(len(metadata)), f"an aggregate has at most {METADATA_KEYS_MAX} keys"
    )


def second_zone(
    after: Aggregate, aggregates: Iterable[Aggregate], members: Memberships, added: Collection[str]
) -> AggregateProblem | None:
    """A host that would be in two zones. `members` are the hosts that the aggregate will have, with the aggregates that each
    is in; those in `added` are new.
    """
    zone = after.metadata.get(ZONE)
    if zone is None:
        return None
    others = {
        each.id: each for each in aggregates if each.id != after.id and each.metadata.get(ZONE, zone) != zone
    }
    for host, memberships in members.items():
        other = next((others[each] for each in memberships if each in others), None)
        if other is None:
            continue
        reason = f"is in zone {other.metadata[ZONE]!r} by aggregate {other.name!r}, and a host has one zone"
        if host in added:
            return AggregateProblem("add_hosts", host, f"{reason}: this aggregate's is {zone!r}")
        return AggregateProblem(f"metadata.{ZONE}", zone, f"its host {host} {reason}")
    return None


def still_has(hosts: Sequence[str]) -> str:
    """Why an aggregate that still has these hosts is not deleted."""
    beside = f" and {len(hosts) - SHOWN_MAX} more" if len(hosts) > SHOWN_MAX else ""
    return f"it has {', '.join(hosts[:SHOWN_MAX])}{beside}: remove its hosts first"
