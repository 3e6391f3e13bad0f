"""Formats a seed for people: its timeline, its plan, and what it covered."""

import re
from collections.abc import Iterator, Mapping
from uuid import UUID

from laboratory.computes.faults import TimedFault
from tests.simulation.nodes_checker import BACK, CLAIMED, LEFT, NODE
from tests.simulation.plan import AggregateOrder, HostOrder, Plan, QuotaOrder
from tests.simulation.seeds import Outcome

_ID = re.compile(r"UUID\('([0-9a-f]{8})[-0-9a-f]*'\)")
_COMMON = re.compile(
    r", (?:reserved=0|min_unit=1|max_unit=2147483647|step_size=1|allocation_ratio=1\.0|project='admins'|user='admin')(?=[,)])"
)


def lines_of(outcome: Outcome, about: str = "") -> Iterator[str]:
    """The whole timeline; or, with `about`, the lines that contain this text, and all faults."""
    for at_s, who, what, details in outcome.timeline:
        line = _terse(f"{at_s:9.3f}  {who:16}  {what.format(*map(_short, details))}")
        if about in line or (about and who in ("FAULT", "CHECK", "SEED")):
            yield line


def summary_of(outcome: Outcome) -> Iterator[str]:
    plan = outcome.plan
    hosts = sum(map(len, plan.hosts.values()))
    ends = ", ".join(f"{count} {state}" for state, count in sorted(outcome.ends.items()))
    where = f"{len(plan.nodes)} nodes" if plan.nodes else f"{hosts} hosts"
    yield f"seed {plan.seed}: {plan.instances} instances of {len(plan.boots)} requests on {where}; {ends}"
    yield (
        f"settled after {outcome.ended_s:.1f} s"
        if outcome.broken is None
        else _terse(f"BROKEN {outcome.broken}")
    )


def plan_lines(plan: Plan) -> Iterator[str]:
    """All elements of a plan."""
    for boot in plan.boots:
        again = (
            f", again at {', '.join(f'{at_s:.2f}' for at_s in boot.repeated_at_s)}"
            if boot.repeated_at_s
            else ""
        )
        yield f"  {boot.at_s:6.2f}  boot {boot.name}: {boot.count} of {boot.vcpus} CPUs{again}{boot.demand or ''}"
    orders: list[AggregateOrder | HostOrder | QuotaOrder] = [*plan.aggregate_orders, *plan.host_orders]
    orders += plan.quota_orders
    for order in orders:
        yield f"  {order.at_s:6.2f}  {order!r}"
    for delete in plan.deletes:
        yield f"  {delete.at_s:6.2f}  delete number {delete.index} of {_short(delete.request)}"
    yield from _changes_of_instances(plan)
    for op in plan.admin_ops:
        yield f"  {op.at_s:6.2f}  {op.admin}: {op.action}"
    for flip in plan.flips:
        yield f"  {flip.at_s:6.2f}  {flip.node}: {flip.action}"
    for fault in plan.faults:
        yield f"  {fault.at_s:6.2f}  {fault!r}"
    for host_fault in plan.script.faults:
        assert isinstance(host_fault, TimedFault)
        yield f"  {host_fault.after_s:6.2f}  {host_fault!r}"
    for of_ironic in plan.ironic.faults:
        yield f"          {of_ironic!r}"


def _changes_of_instances(plan: Plan) -> Iterator[str]:
    for rebuild in plan.rebuilds:
        yield f"  {rebuild.at_s:6.2f}  rebuild number {rebuild.index} of {_short(rebuild.request)}"
    for move in plan.moves:
        yield f"  {move.at_s:6.2f}  move number {move.index} of {_short(move.request)}: {move!r}"
    for switch in plan.switches:
        yield f"  {switch.at_s:6.2f}  {switch.kind} number {switch.index} of {_short(switch.request)}"
    for evacuation in plan.evacuations:
        yield f"  {evacuation.at_s:6.2f}  {evacuation!r}"


def covered(seen: Mapping[tuple[str, str], int]) -> Iterator[str]:
    kinds = sorted({kind for kind, _ in seen})
    for kind in kinds:
        of_kind = sorted((what, count) for (each, what), count in seen.items() if each == kind)
        yield f"{kind}: " + ", ".join(f"{what} {count}" for what, count in of_kind)


def flips_and_claims(seen: Mapping[tuple[str, str], int]) -> str:
    left, back, claimed = (seen.get((NODE, what), 0) for what in (LEFT, BACK, CLAIMED))
    return f"{left + back} state flips and {claimed} claims of bare-metal nodes"


def _terse(line: str) -> str:
    """Leave out the fields that have their usual value, and shorten ids."""
    return _COMMON.sub("", _ID.sub(r"\1", line))


def _short(detail: object) -> object:
    return str(detail)[:8] if isinstance(detail, UUID) else detail
