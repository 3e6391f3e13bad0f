"""One host is handed over: fenced in Nova and here, copied, verified, enabled here; or given back.

What was done is found by comparing both sides, so the same steps go on after an interruption. Until a host is in the aggregate of
those that were handed over, Nova is its master, and here it is `draining`: nothing is built on it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

from msgspec import Struct, structs

from bus.messages.adoption import GiveBackInstance
from bus.messages.build import Flavor, InstanceId
from bus.messages.hosts import HostState
from bus.messages.placement import Share
from moor.importing_nova.cloud import GIVEN, GIVING, TAKEN, TAKING, Cloud
from moor.importing_nova.core.differences import differences_of
from moor.importing_nova.core.judging import contradictions_of, what_is_under_way, why_not_fenced
from moor.importing_nova.core.orders import HostPlan, planned
from moor.importing_nova.core.records import NovaHost
from moor.importing_nova.reading import HostRow, NovaDatabases

# bare metal: ironic_sync has its nodes. in nova: Nova is its master, and it is not disabled there. kept back: it is disabled there, and
# something speaks against it. here: Moorage is its master.
Stage = Literal["bare metal", "in nova", "kept back", "here", "given back"]
SETTLE_S = 60.0
LOOK_S_FIRST, LOOK_S_MAX = 0.05, 2.0


class HostReport(Struct, frozen=True):
    """How far a host is. `copied` of its `instances` are here. `reasons` keep it back; or differ, if it was verified."""

    cell: str
    host: str
    stage: Stage
    instances: int = 0
    copied: int = 0
    reasons: tuple[str, ...] = ()


class HandingOver:
    def __init__(
        self,
        databases: NovaDatabases,
        cloud: Cloud,
        flavors: Mapping[int, Flavor],
        *,
        clashes: Mapping[str, str],
        doubled: Collection[str],
        clock: Callable[[], datetime],
    ) -> None:
        """`clashes` says of hosts' names in several cells which these are; `doubled` are instances that several cells have."""
        self._databases = databases
        self._cloud = cloud
        self._flavors = flavors
        self._clashes = clashes
        self._doubled = frozenset(doubled)
        self._clock = clock

    async def take(self, row: HostRow) -> HostReport:  # noqa: PLR0911 - one for each that keeps it back
        """Hand this host over, as far as nothing keeps it back."""
        report = HostReport(row.cell, row.name, "kept back", row.instances)
        if row.is_bare_metal:
            return structs.replace(report, stage="bare metal")
        host = self._cloud.hosts.get((row.cell, row.name))
        if host is not None and self._cloud.has_taken(host):
            if host.setting.mode == "draining" and host.setting.reason == TAKING:
                await self._cloud.set_mode(host, "up", TAKEN)
            return structs.replace(report, stage="here", copied=row.instances)
        nova = await self._databases.host(row.cell, row.name)
        if reasons := self._reasons(nova):
            is_enabled = nova.service is not None and not nova.service.disabled
            return structs.replace(
                report, stage="in nova" if is_enabled else "kept back", reasons=tuple(reasons)
            )
        if host is None:
            return structs.replace(report, reasons=(_no_compute(row),))
        if not host.up and host.setting.mode == "up":
            return structs.replace(report, reasons=(f"its compute here is down: host {row.cell}/{row.name}",))
        plan = await self._planned(nova, host)
        if plan.contradictions:
            return structs.replace(report, reasons=plan.contradictions)
        return await self._copy(report, nova, host, plan)

    async def _copy(self, report: HostReport, nova: NovaHost, host: HostState, plan: HostPlan) -> HostReport:
        if (host.setting.mode, host.setting.reason) != ("draining", TAKING):
            host = await self._cloud.set_mode(host, "draining", TAKING)
        of_nova = {order.instance for order in plan.orders}
        if strangers := [each.id for each in await self._cloud.living_on(host) if each.id not in of_nova]:
            reasons = tuple(
                f"instance {each} was built on it here, while Nova has the host" for each in strangers
            )
            return structs.replace(report, reasons=reasons)
        refused = await self._cloud.ordered(plan.orders)
        copied = len(await self._cloud.known([order.instance for order in plan.orders]))
        report = structs.replace(report, copied=copied)
        if refused:
            return structs.replace(report, reasons=tuple(refused))
        if differences := await self._until_equal(host, plan):
            return structs.replace(report, reasons=tuple(differences))
        after = await self._databases.host(nova.cell, nova.name)
        if since := self._reasons(after):
            return structs.replace(report, reasons=tuple(since))
        if _lasting(after) != _lasting(nova):
            changed = "Nova has changed something on it meanwhile: run the command again"
            return structs.replace(report, reasons=(changed,))
        await self._cloud.note_taken(host)
        await self._cloud.set_mode(host, "up", TAKEN)
        return structs.replace(report, stage="here")

    async def verify(self, row: HostRow) -> HostReport:
        """Compare what both sides have of this host, and change nothing."""
        report = HostReport(row.cell, row.name, "in nova", row.instances)
        if row.is_bare_metal:
            return structs.replace(report, stage="bare metal")
        host = self._cloud.hosts.get((row.cell, row.name))
        nova = await self._databases.host(row.cell, row.name)
        if host is None:
            return structs.replace(report, reasons=(_no_compute(row), *contradictions_of(nova)))
        is_here = self._cloud.has_taken(host)
        report = structs.replace(report, stage="here" if is_here else "in nova")
        plan = await self._planned(nova, host)
        reasons = [*self._contradictions(nova), *plan.contradictions]
        if is_here and nova.service is not None and not nova.service.disabled:
            reasons.append("it is enabled in Nova, too: one host has two masters")
        if not is_here and host.setting.mode == "up":
            reasons.append("it is up here, too: one host has two masters")
        of_nova = {order.instance for order in plan.orders}
        reasons += [
            f"instance {each.id}: it is {each.state} here, and Nova does not have it on this host"
            for each in await self._cloud.living_on(host)
            if each.id not in of_nova
        ]
        reasons += await self._differences(host, plan)
        copied = len(await self._cloud.known([*of_nova]))
        return structs.replace(report, reasons=tuple(reasons), copied=copied)

    async def give_back(self, row: HostRow) -> HostReport:
        """Give the host back to Nova, if it has only what Nova knows."""
        report = HostReport(row.cell, row.name, "here", row.instances)
        host = self._cloud.hosts.get((row.cell, row.name))
        if host is None:
            return structs.replace(report, stage="kept back", reasons=(_no_compute(row),))
        nova = await self._databases.host(row.cell, row.name)
        if nova.service is None or not nova.service.disabled:
            return structs.replace(report, reasons=("it is enabled in Nova already: disable it there first",))
        # One that was interrupted has looked before; and it may have given some back since.
        goes_on = host.setting.reason == GIVING
        if not goes_on and (reasons := await self._why_not_back(host, nova)):
            return structs.replace(report, copied=row.instances, reasons=tuple(reasons))
        host = await self._cloud.set_mode(host, "draining", GIVING)
        living = [each.id for each in await self._cloud.living_on(host)]
        if not goes_on and (reasons := await self._why_not_back(host, nova)):
            await self._cloud.set_mode(host, "up", TAKEN)
            return structs.replace(report, copied=len(living), reasons=tuple(reasons))
        refused = await self._cloud.ordered([GiveBackInstance(instance=each) for each in living])
        refused = refused or await self._until_gone(living)
        if refused:
            return structs.replace(report, copied=len(living), reasons=tuple(refused))
        await self._cloud.note_given_back(host)
        await self._cloud.set_mode(host, "draining", GIVEN)
        return structs.replace(report, stage="given back")

    async def _why_not_back(self, host: HostState, nova: NovaHost) -> list[str]:
        """What the host has here, and Nova does not know; and what it has no more."""
        of_nova = {InstanceId(UUID(each.id)) for each in nova.instances}
        living = {each.id for each in await self._cloud.living_on(host)}
        return [
            *[
                f"instance {each} was built or moved here: delete it, or move it to another host"
                for each in sorted(living - of_nova)
            ],
            *[
                f"instance {each} is not on this host any more, and Nova still has it there: delete it in Nova"
                for each in sorted(of_nova - living)
                if self._cloud.has_taken(host)
            ],
        ]

    async def _until_gone(self, ids: Sequence[InstanceId]) -> list[str]:
        async def left() -> list[str]:
            known = await self._cloud.known(ids)
            return [f"instance {each} is still {state.state} here" for each, state in known.items()]

        return await _until_none(left)

    def _reasons(self, nova: NovaHost) -> list[str]:
        return [
            *why_not_fenced(nova, self._clock()),
            *what_is_under_way(nova),
            *self._contradictions(nova),
        ]

    def _contradictions(self, nova: NovaHost) -> list[str]:
        found = contradictions_of(nova)
        if nova.name in self._clashes:
            found.append(self._clashes[nova.name])
        found += [
            f"instance {each.id} is in several cells of Nova"
            for each in nova.instances
            if each.id in self._doubled
        ]
        return found

    async def _planned(self, nova: NovaHost, host: HostState) -> HostPlan:
        tree = self._cloud.tree_of(host)
        if not tree.is_known:
            return HostPlan((), (f"placement here has no provider of host {nova.cell}/{nova.name} yet",))
        ids = [InstanceId(UUID(each.id)) for each in nova.instances]
        here = await self._cloud.known(ids)
        views = await self._cloud.views(nova.cell, host.id, sorted(here)) if here else {}
        shares = {
            id_: Share(host=view.consumer.host, amounts=view.consumer.held)
            for id_, view in views.items()
            if view.consumer is not None and view.consumer.host is not None and view.consumer.held
        }
        return planned(nova, tree, self._flavors, shares, self._clock())

    async def _differences(self, host: HostState, plan: HostPlan) -> list[str]:
        ids = [order.instance for order in plan.orders]
        views = await self._cloud.views(host.cell, host.id, ids) if ids else {}
        found: list[str] = []
        for order in plan.orders:
            found += differences_of(
                order, plan.needs[order.instance], views.get(order.instance), is_asked=order.instance in views
            )
        return found

    async def _until_equal(self, host: HostState, plan: HostPlan) -> list[str]:
        """The host has answered, and the cell has told the API level: then nothing differs. Otherwise what differs at the end."""
        return await _until_none(lambda: self._differences(host, plan))


async def _until_none(look: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """Look until nothing is found, and return what is found when the time is over."""
    pause_s, passed_s = LOOK_S_FIRST, 0.0
    while (found := await look()) and passed_s < SETTLE_S:
        await asyncio.sleep(pause_s)
        passed_s += pause_s
        pause_s = min(2 * pause_s, LOOK_S_MAX)
    return found


def _no_compute(row: HostRow) -> str:
    return f"there is no host {row.name} in cell {row.cell} here: start its compute, `moor run compute`"


def _lasting(nova: NovaHost) -> NovaHost:
    """Without what changes by itself."""
    service = None if nova.service is None else structs.replace(nova.service, seen_at=None)
    return structs.replace(nova, service=service, nodes=())
