"""How campaigns begin: over which hosts, and what becomes of those that another campaign has."""

from collections.abc import Sequence
from datetime import datetime

from bus.messages.build import BuildRejected
from bus.messages.keeping import CAMPAIGN_HOSTS_MAX, CampaignHost, CampaignState, CampaignWork, Movement
from engine.hosts import HostState, host_in_cell, names_clash
from keeper import store_sql as rows
from keeper.asking import Schedulers, forgotten
from keeper.core.campaigns import OPEN, rejected, staged
from keeper.core.recovery import taken_over
from keeper.store_sql import KeeperStore
from kit.sql import Transaction


class CampaignHosts:
    """Finds the hosts that a campaign is over."""

    def __init__(self, schedulers: Schedulers) -> None:
        self._schedulers = schedulers

    async def of(self, work: CampaignWork) -> list[CampaignHost] | BuildRejected:
        """The hosts in the order of their turns: those with the fewest guests first, so that their room takes the guests of the others."""
        found = await (self._named(work) if work.hosts else self._schedulers.hosts_for(work))
        if isinstance(found, BuildRejected):
            return found
        if not found:
            asked_for = f"cell {work.cell or 'any'}, place {work.place or 'any'}, mode {work.mode or 'any'}"
            return rejected("work.hosts", "", f"no host has this: {asked_for}")
        if len(found) > CAMPAIGN_HOSTS_MAX:
            return rejected(
                "work.hosts", len(found), f"a campaign is over at most {CAMPAIGN_HOSTS_MAX} hosts"
            )
        wrong = next((each for each in found if each.up is (work.kind == "evacuate")), None)
        if wrong is not None:
            why = "is up, so nothing is evacuated: set it down first" if wrong.up else "is down: evacuate it"
            return rejected("work.hosts", host_in_cell(wrong.cell, wrong.name), f"host {wrong.name} {why}")
        found.sort(key=lambda each: (each.instances, each.cell, each.name))
        return [
            CampaignHost(id=each.id, host=each.name, cell=each.cell, place=each.place, fence=work.fence)
            for each in found
        ]

    async def _named(self, work: CampaignWork) -> list[HostState] | BuildRejected:
        found: dict[object, HostState] = {}
        called = await self._schedulers.hosts_called(dict.fromkeys(work.hosts))
        for name, known in called.items():
            hosts = known or await self._forgotten(name, work)
            if len(hosts) != 1:
                cells = sorted({each.cell for each in hosts})
                return rejected("work.hosts", name, names_clash(name, cells) if hosts else "no such host")
            found[hosts[0].id] = hosts[0]
        return [*found.values()]

    async def _forgotten(self, name: str, work: CampaignWork) -> Sequence[HostState]:
        """A host that schedulers have forgotten may still have guests to evacuate."""
        if work.kind != "evacuate":
            return ()
        guests = (await self._schedulers.guests_on((name,)))[name]
        cells = sorted({(each.cell, each.host) for each, _ in guests})
        return [forgotten(cell, host) for cell, host in cells]


async def begin_campaign(
    store: KeeperStore,
    wanted: CampaignState,
    hosts: Sequence[CampaignHost],
    movements: Sequence[Movement] = (),
    *,
    join: bool = False,
) -> CampaignState | BuildRejected:
    """Write a campaign with its hosts, unless it is there already. A host that only gives guests for a balance is taken from that."""
    now = wanted.asked_at
    assert now is not None, "whoever asks for a campaign notes when"
    async with store.transaction() as transaction:
        await transaction.run(rows.lock_ledger)
        # It may have come twice at the same time.
        if (same := await transaction.run(rows.lock_campaign, wanted.id)) is not None:
            return same
        for other in await transaction.run(rows.campaigns_called, wanted.name):
            if other.ended_at is None:
                why = f"campaign {other.id} of this name goes on: choose another name"
                return rejected("name", wanted.name, why)
        having = await transaction.run(rows.others_with, [each.id for each in hosts])
        is_balance = wanted.work.kind == "balance"
        taken = {id_: each for id_, each in having.items() if is_balance or each.work.kind != "balance"}
        free = [each for each in hosts if each.id not in taken]
        if taken and not (join and free):
            host = next(each for each in hosts if each.id in taken)
            why = f"campaign {taken[host.id].name} has it: wait for its end, or join to take only the hosts that no campaign has"
            return rejected("work.hosts", host_in_cell(host.cell, host.host), why)
        await transaction.run(rows.add_campaign, wanted)
        why = f"campaign {wanted.name} has it now"
        for each in free:
            if each.id in having:
                await take_from(transaction, having[each.id], each, wanted, why=why, now=now)
        await transaction.run(rows.add_hosts, wanted.id, free)
        await transaction.run(rows.add_movements, movements)
    return wanted


async def take_from(
    transaction: Transaction,
    other: CampaignState,
    host: CampaignHost,
    campaign: CampaignState,
    *,
    why: str,
    now: datetime,
) -> None:
    """Take a host from another campaign, with the movements that go on. What that has planned is not done any more."""
    locked = await transaction.run(rows.lock_hosts, other.id, (host.id,))
    await transaction.run(
        rows.save_hosts, other.id, [staged(each, "failed", now, why) for each in locked.values()]
    )
    there = await transaction.run(rows.movements_of, other.id, OPEN, (host.host,))
    mine = await transaction.run(rows.lock_movements, [each.id for each in there if each.cell == host.cell])
    await transaction.run(rows.save_movements, [taken_over(each, campaign, why, now) for each in mine])
