"""Handles the orders that set the mode of a host, and what a compute says of hosts: the list of what one has after it was silent
or dead, or that it has none of a name.
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec import structs

from bus.message import CellName, ProviderId
from bus.messages.host_modes import (
    CheckHost,
    HeldAttempt,
    HostCleaned,
    HostHolds,
    HostsNotHere,
    SetHostInCell,
)
from bus.workers.handling import Handlers, Received, Said, Tell
from cell_conductor.core.host_states import CellHost, foreign, newer
from cell_conductor.core.instance import Destroy, Instance
from cell_conductor.core.transition import destroy_order
from cell_conductor.handlers import of_cell
from cell_conductor.store import ConductorTransaction


def host_handlers(
    cell: CellName, expect_setting: Callable[[], None], lose: Callable[[Iterable[ProviderId]], None]
) -> Handlers:
    """The handlers of messages about hosts, by message type.

    `expect_setting` is called in each transaction that saves modes of hosts, so that the host watch reads them right
    after the commit; `lose` with the hosts that the cell's compute does not have.
    """

    async def on_settings(
        received: Sequence[Received[SetHostInCell]], tx: ConductorTransaction
    ) -> list[Said]:
        ours, said = of_cell(cell, received)
        hosts = dict(await tx.lock_hosts([each.message.host for each in ours]))
        changed: dict[ProviderId, CellHost] = {}
        for each in ours:
            word = each.message
            if (host := newer(hosts.get(word.host), word)) is not None:
                changed[word.host] = hosts[word.host] = host
        await tx.save_hosts([*changed.values()])
        expect_setting()
        return said

    async def on_holds(received: Sequence[Received[HostHolds]], tx: ConductorTransaction) -> list[Said]:
        ours, said = of_cell(cell, received)
        rows = await tx.load([each.instance for item in ours for each in item.message.attempts])
        hosts = await tx.lock_hosts([each.message.host for each in ours])
        for item in ours:
            holds = item.message
            host = hosts.get(holds.host)
            # Of a host that was dead everything is elsewhere by now.
            must_clean = host is not None and host.must_clean
            gone = foreign(rows, holds.host, holds.attempts, destroys_unknown=must_clean)
            said += [
                Tell(_order_to_remove(rows.get(each.instance), each, item.message), item) for each in gone
            ]
            if gone and must_clean:
                # It is asked again, from the first page, until it has nothing that is not its own.
                continue
            if holds.next is not None:
                again = CheckHost(cell=cell, host=holds.host, number=holds.number, after=holds.next)
                said.append(Tell(again, item))
            elif host is not None and host.is_cleaned_by(holds.number):
                await tx.save_hosts([structs.replace(host, cleaned=holds.number)])
                said.append(Tell(HostCleaned(cell=cell, host=holds.host, number=holds.number), item))
        return said

    async def on_not_here(received: Sequence[Received[HostsNotHere]], _: ConductorTransaction) -> list[Said]:
        ours, said = of_cell(cell, received)
        lose(host for each in ours for host in each.message.hosts)
        return said

    return {SetHostInCell: on_settings, HostHolds: on_holds, HostsNotHere: on_not_here}


def _order_to_remove(row: Instance | None, held: HeldAttempt, holds: HostHolds) -> Destroy:
    """An instance that is given back leaves its guest on the host."""
    is_left = row is not None and row.given_back
    return destroy_order(holds.cell, held.instance, held.attempt, holds.host, "", keeps_guest=is_left)
