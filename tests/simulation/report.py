"""Formats a seed for people: its timeline, its plan, and what it covered."""

import re
from collections.abc import Iterator, Mapping
from uuid import UUID

from tests.simulation.nodes_checker import BACK, CLAIMED, LEFT, NODE
from tests.simulation.plan import Boot, Delete, Plan, PlannedMove, Rebuild, Switch
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
    elements: list[tuple[float, object]] = [
        *((boot.at_s, _boot(boot)) for boot in plan.boots),
        *((each.at_s, each) for each in plan.aggregate_orders),
        *((each.at_s, each) for each in plan.host_orders),
        *((each.at_s, each) for each in plan.quota_orders),
        *((each.at_s, each) for each in plan.budgets),
        *((each.at_s, each) for each in plan.campaigns),
        *((each.at_s, f"delete {_instance(each)}") for each in plan.deletes),
        *((each.at_s, f"rebuild {_instance(each)}") for each in plan.rebuilds),
        *((each.at_s, f"move {_instance(each)}: {each!r}") for each in plan.moves),
        *((each.at_s, f"{each.kind} {_instance(each)}") for each in plan.switches),
        *((each.at_s, each) for each in plan.evacuations),
        *((each.at_s, f"{each.admin}: {each.action}") for each in plan.admin_ops),
        *((each.at_s, f"{each.node}: {each.action}") for each in plan.flips),
        *((each.at_s, each) for each in plan.faults),
        *((each.after_s, each) for each in plan.script.faults),
    ]
    yield from (f"  {at_s:6.2f}  {words}" for at_s, words in elements)
    yield from (f"          {of_ironic!r}" for of_ironic in plan.ironic.faults)


def _boot(boot: Boot) -> str:
    times = ", ".join(f"{at_s:.2f}" for at_s in boot.repeated_at_s)
    again = f", again at {times}" if times else ""
    return f"boot {boot.name}: {boot.count} of {boot.vcpus} CPUs{again}{boot.demand or ''}"


def _instance(ordered: Delete | Rebuild | PlannedMove | Switch) -> str:
    return f"number {ordered.index} of {_short(ordered.request)}"


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
