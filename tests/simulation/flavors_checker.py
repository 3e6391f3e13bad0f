"""Follows the requests that accept several flavors: each instance holds what its flavor asks for, and gets a worse flavor
only if no better one fits.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from bus.messages.cell import PlaceInCell
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import Choice
from scheduler_worker.core.instances.rows import InstanceRow
from tests.simulation.findings import Findings
from tests.simulation.host_history import HostHistories, short_id
from tests.simulation.plan import GOLD, Boot, Plan
from tests.simulation.workers import BUS

# Counted events.
FLAVOR = "flavor"
NAMES = ("large", "medium", "small")
# Choices of other batches that placement has not answered yet may hide so many hosts from a scheduler.
HIDDEN_MAX = 2
# Longer than any pause of a scheduler that tries what waits, when nothing fails any more.
WOKEN_WITHIN_S = 5.0


class _Size(Struct, frozen=True):
    amounts: Mapping[str, int]
    traits: frozenset[str]


class FlavorsChecker:
    def __init__(self, findings: Findings, hosts: HostHistories, plan: Plan) -> None:
        self._findings = findings
        self._hosts = hosts
        self._boots = {RequestId(boot.id): boot for boot in plan.boots if boot.alternatives}
        self._accepted_s: dict[InstanceId, float] = {}

    def written(self, rows: Iterable[InstanceRow], before: Mapping[InstanceId, InstanceRow]) -> None:
        """Called before `before` has these rows."""
        for row in rows:
            boot = self._boots.get(row.told.request_id)
            if boot is None:
                continue
            was, now = before.get(row.id), row.told.state
            if now == "accepted":
                self._accepted_s.setdefault(row.id, self._findings.now_s)
            if was is not None and was.told.flavor not in (None, row.told.flavor):
                self._findings.count(FLAVOR, "taken by the cell")
            if was is not None and was.told.state == now:
                continue
            if now == "placed" and row.order is not None:
                self._check_placed(
                    boot, row, row.order, waited=was is not None and was.told.state == "waiting"
                )
            elif now == "error" and row.told.no_valid_host is not None:
                self._check_better(boot, row, len(NAMES), hidden=0, since_s=self._since_s(row, waited=False))

    def _check_placed(self, boot: Boot, row: InstanceRow, order: PlaceInCell, *, waited: bool) -> None:
        name = order.flavor.name
        number = NAMES.index(name)
        self._findings.count(FLAVOR, f"{name}, after it waited" if waited else name)
        passed_over = tuple(each.flavor for each in row.told.passed_over)
        if row.told.flavor != order.flavor or passed_over != NAMES[:number]:
            self._findings.breaks(
                "an instance has the flavor that its state tells",
                f"{row.told.name} ({short_id(row.id)}) is ordered as {name}, and told as {row.told.flavor} after {passed_over}",
            )
        for each in (order.chosen, *order.alternates):
            flavor = order.other_flavors.get(each.share.host, order.flavor)
            if flavor != order.flavor:
                self._findings.count(FLAVOR, "an alternate with another one")
            self._check_share(boot, row, each, flavor)
        for passed in row.told.passed_over:
            funnel = passed.no_valid_host
            if funnel is not None and sum(step.removed for step in funnel.steps) != funnel.hosts:
                self._findings.breaks(
                    "every no has its reasons", f"{row.told.name}: {passed.flavor} of {funnel!r}"
                )
        self._check_better(boot, row, number, hidden=HIDDEN_MAX, since_s=self._since_s(row, waited=waited))

    def _check_share(self, boot: Boot, row: InstanceRow, choice: Choice, flavor: Flavor) -> None:
        share: dict[str, int] = {}
        for each in choice.share.amounts:
            share[each.resource] = share.get(each.resource, 0) + each.amount
        if share != size_of(boot, NAMES.index(flavor.name)).amounts:
            self._findings.breaks(
                "a share has the amounts of its flavor",
                f"{row.told.name} ({short_id(row.id)}) as {flavor.name} takes {share} of {choice.name}",
            )

    def _check_better(
        self, boot: Boot, row: InstanceRow, number: int, *, hidden: int, since_s: float
    ) -> None:
        """Check that hosts did not have room for any flavor better than the one with this number during the whole time
        since `since_s`, except for so many that a scheduler may not have seen.
        """
        for better, passed in enumerate(NAMES[:number]):
            told = row.told.passed_over[better] if better < len(row.told.passed_over) else None
            if told is not None and ("claims were refused" in told.reason or "holds" in told.reason):
                continue
            size = size_of(boot, better)
            fitting = self._hosts.fitting(dict(size.amounts), size.traits, (), since_s, BUS.host_down_s)
            if len(fitting) > hidden:
                got = NAMES[number] if number < len(NAMES) else "nothing"
                self._findings.breaks(
                    "a worse flavor is given only if no better one fits",
                    f"{row.told.name} ({short_id(row.id)}) got {got}, although {fitting} had room for {passed} all the time",
                )

    def _since_s(self, row: InstanceRow, *, waited: bool) -> float:
        now_s = self._findings.now_s
        since_s = self._accepted_s.get(row.id, now_s)
        # It may have had no room at first; but it is tried soon after a host has room.
        return max(since_s, now_s - WOKEN_WITHIN_S) if waited else since_s


def size_of(boot: Boot, number: int) -> _Size:
    """The needs of the flavor with this number, the best one first."""
    vcpus, ram_mb = ((boot.vcpus, boot.ram_mb), *boot.alternatives)[number]
    traits = frozenset({GOLD}) if boot.needs_gold and not number else frozenset[str]()
    return _Size({"VCPU": vcpus, "MEMORY_MB": ram_mb, "DISK_GB": 1}, traits)
