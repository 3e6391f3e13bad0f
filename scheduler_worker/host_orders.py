"""Orders of operators about hosts: to set the mode of one, and to delete one that is gone for good."""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from datetime import datetime
from uuid import UUID

from msgspec import structs

from bus.message import Message
from bus.messages.books import (
    DeleteProvider,
    Done,
    ProviderPlace,
    SetPlaces,
    UnknownProvider,
    WriteAnswered,
)
from bus.messages.build import BuildRejected
from bus.messages.cloud import page_that_fits
from bus.messages.hosts import (
    DeleteHost,
    HostChanged,
    HostDeleted,
    HostPlace,
    HostPlaced,
    HostSet,
    HostsPlaced,
    PlaceHosts,
    SetHost,
)
from bus.messages.placement import InventoryInUse
from bus.workers.handlers import Answer, Handlers, Received, Said, Tell
from engine.hosts import NODE, HostState, cell_and_name, host_in_cell, names_clash, why_ambiguous
from engine.inventories import ProviderId, ProviderState
from engine.picture.picture import Picture
from kit.errors import WrongAnswer
from scheduler_worker.core.hosts import problem_of, why_unsure, with_mode, without_setting
from scheduler_worker.core.instances.rows import InstanceRow, is_on_host
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.outbox import OutboxTransaction
from scheduler_worker.overview import use_of
from scheduler_worker.requests.reading import AskAll, rejection
from scheduler_worker.store_sql import ChangeQuery, HostQuery, InstanceQuery, SchedulerStore

log = logging.getLogger(__name__)


def hosts_called(name: str, hosts: Collection[HostState]) -> list[HostState]:
    """The hosts with this name, in the cell before it if there is one (`c1/h1`); or the one with this id."""
    cell, plain = cell_and_name(name)
    there = [host for host in hosts if host.cell == cell and host.name == plain]
    return there or [host for host in hosts if name in (host.name, str(host.id))]


def host_id_in(name: str) -> ProviderId | None:
    """The id that this is; None if it is a name."""
    try:
        return ProviderId(UUID(name))
    except ValueError:
        return None


def _unknown(name: str, picture: Picture) -> BuildRejected:
    return rejection("host", name, f"{picture.no_host(name)}; `moor host list` shows all hosts")


# Deletes a host from placement, from what its cell knows of its mode, and from the registry.
#
# Each step may be repeated, and the row of the host goes last. So an order that is delivered again after a crash goes on where it was.


# A refusal names so many instances.
NAMED_MAX = 3
INSTANCES_READ_MAX = 200
# Of rows of a host, so many are read at once: most may be of builds that ended in error there.
ROWS_OF_HOST_MAX = 1000


async def instances_on(store: SchedulerStore, host: str, most: int) -> list[InstanceRow]:
    """The first instances that are on this host (`c1/h1`), at most so many."""
    found: list[InstanceRow] = []
    query = InstanceQuery(host=host, limit=ROWS_OF_HOST_MAX)
    while (page := await store.instance_page(query)) is not None:
        found += filter(is_on_host, page.rows)
        if page.next is None or len(found) >= most:
            break
        query = structs.replace(query, after=page.next)
    return found[:most]


class HostOrders:
    """`make_sure` returns when the picture has everything that was written before the call. `tell_cells` tells cells in which
    mode their hosts are, and returns when those that could be told know it.
    """

    def __init__(
        self,
        store: SchedulerStore,
        picture: Picture,
        registry: HostRegistry,
        clock: Callable[[], datetime],
        *,
        ask_all: AskAll,
        make_sure: Callable[[], Awaitable[None]],
        tell_cells: Callable[[], Awaitable[object]],
    ) -> None:
        self._store = store
        self._picture = picture
        self._registry = registry
        self._clock = clock
        self._ask_all = ask_all
        self._make_sure = make_sure
        self._tell_cells = tell_cells

    def handlers(self) -> Handlers:
        return {SetHost: self._on_set, PlaceHosts: self._on_place, DeleteHost: self._on_delete}

    async def _on_set(self, asks: Sequence[Received[SetHost]], transaction: OutboxTransaction) -> list[Said]:
        store = await transaction.begun()
        names = {name for ask in asks for name in (ask.message.host, cell_and_name(ask.message.host)[1])}
        ids = {id_ for name in names if (id_ := host_id_in(name)) is not None}
        found = await store.lock_hosts(sorted(ids), sorted(names))
        hosts = {host.id: host for host in found}
        answers: list[Said] = []
        for ask in asks:
            order = ask.message
            named = hosts_called(order.host, hosts.values())
            if not named:
                answers.append(Answer(ask, _unknown(order.host, self._picture)))
                continue
            if len(cells := sorted({host.cell for host in named})) > 1:
                answers.append(Answer(ask, rejection("host", order.host, names_clash(order.host, cells))))
                continue
            if problem := next(filter(None, (problem_of(host, order) for host in named)), ""):
                answers.append(Answer(ask, rejection("mode", order.mode, problem)))
                continue
            unsure = (why_unsure(host, order, self._registry.unheard(host.id)) for host in named)
            if doubt := next(filter(None, unsure), ""):
                answers.append(Answer(ask, rejection("sure", "false", doubt)))
                continue
            for before in named:
                host = with_mode(before, order.mode, order.reason, ask.by, self._clock())
                if host is not before:
                    host = structs.replace(host, sequence=host.sequence + 1)
                hosts[host.id] = host
                # Said again if the order is repeated: the event may be lost.
                answers.append(Tell(HostChanged(cell=host.cell, host=self._registry.as_heard(host)), ask))
            answers.append(Answer(ask, HostSet(host=self._registry.as_heard(hosts[named[0].id]))))
        changed = [hosts[host.id] for host in found if hosts[host.id] is not host]
        await store.save_hosts(changed, self._clock())
        transaction.when_committed(lambda: self._registry.learn(changed))
        return answers

    async def _on_place(self, asks: Sequence[Received[PlaceHosts]], _: OutboxTransaction) -> list[Said]:
        said: list[Said] = []
        for ask in asks:
            await self._make_sure()
            order = ask.message
            found = self._ids_in(order)
            if isinstance(found, BuildRejected):
                said.append(Answer(ask, found))
                continue
            before = {host: self._picture.place_of(host) for host in found}
            if not order.only_check:
                if refused := await self._placed(order, found):
                    said.append(Answer(ask, refused))
                    continue
                await self._make_sure()
            placed = tuple([self._where(host) for host in found])
            said.append(Answer(ask, HostsPlaced(hosts=page_that_fits(placed))))
            for host, now in zip(found, placed, strict=True):
                row = self._registry.get(host)
                if order.only_check or row is None:
                    continue
                if now.place != before[host]:
                    log.info(
                        "%s has placed host %s at %r, before at %r",
                        *(ask.by or "an operator", now.host, now.place, before[host]),
                    )
                # Said again if the order is repeated: the event may be lost.
                event = HostChanged(
                    cell=row.cell,
                    host=self._registry.as_heard(row),
                    placed=HostPlaced(by=ask.by, before=before[host]),
                )
                said.append(Tell(event, ask))
        return said

    def _ids_in(self, order: PlaceHosts) -> list[ProviderId] | BuildRejected:
        """The hosts of the order, in its order; or the refusal of its first entry that does not say which host is meant."""
        picture = self._picture
        found: dict[ProviderId, int] = {}
        for number, each in enumerate(order.hosts):
            rows = [*picture.rows_named(each.host.lower())]
            if not rows and (id_ := host_id_in(each.host)) is not None and (row := picture.row_of(id_)) >= 0:
                rows = [row]
            ids = [picture.columns.ids[row] for row in rows]
            if not ids:
                why = f"{picture.no_host(each.host)}; `moor host list` shows all hosts"
            elif len(ids) > 1:
                why = names_clash(each.host, picture.cells_named(each.host))
            elif not picture.has_provider(ids[0]):
                why = "placement has no provider of it yet"
            elif (earlier := found.setdefault(ids[0], number)) != number:
                why = f"hosts[{earlier}] names it, too"
            else:
                continue
            return rejection(f"hosts[{number}].host", each.host, why)
        return [*found]

    async def _placed(self, order: PlaceHosts, hosts: Sequence[ProviderId]) -> BuildRejected | None:
        places = tuple(
            [
                ProviderPlace(provider=id_, place=each.place)
                for id_, each in zip(hosts, order.hosts, strict=True)
            ]
        )
        (answer,) = await self._ask_all([SetPlaces(places=places)])
        if not isinstance(answer, WriteAnswered):
            raise WrongAnswer(f"placement answered an order to place hosts by {answer!r}")
        if isinstance(answer.verdict, Done):
            return None
        # A host was deleted, or became a part of another one, since it was looked up.
        return rejection(
            "hosts",
            answer.verdict,
            "they were changed at this moment, and none is placed: send the order again",
        )

    def _where(self, host: ProviderId) -> HostPlace:
        columns, row = self._picture.columns, self._picture.row_of(host)
        if row < 0:
            return HostPlace(host=str(host), place="")
        cell = columns.cells.names[int(columns.cell[row])]
        return HostPlace(host=host_in_cell(cell, columns.names[row]), place=self._picture.place_of(host))

    async def _on_delete(self, asks: Sequence[Received[DeleteHost]], _: OutboxTransaction) -> list[Said]:
        said: list[Said] = []
        await self._make_sure()
        for ask in asks:
            outcome = await self._deleted(ask.message.host)
            if isinstance(outcome, BuildRejected):
                said.append(Answer(ask, outcome))
            else:
                host, last = outcome
                log.info("%s has deleted host %s of cell %s", ask.by or "an operator", host.name, host.cell)
                said.append(Tell(HostChanged(cell=host.cell, host=last, deleted=True), ask))
                said.append(Answer(ask, HostDeleted(host=host)))
        return said

    async def _deleted(self, name: str) -> tuple[HostState, HostState] | BuildRejected:
        """The host as it was, and the last state of its row, after it was deleted; or why it was not."""
        named = await self._called(name)
        if not named:
            return _unknown(name, self._picture)
        if len(named) > 1:
            return rejection("host", name, why_ambiguous(name, named))
        host = self._registry.as_heard(named[0])
        if why := await self._why_kept(host) or await self._why_not_unprovided(host):
            return rejection("host", name, why)
        last = await self._forgotten(host)
        return rejection("host", name, last) if isinstance(last, str) else (host, last)

    async def _called(self, name: str) -> list[HostState]:
        if (id_ := host_id_in(name)) is not None:
            return list(await self._store.hosts(HostQuery(ids=(id_,))))
        names = dict.fromkeys((name, cell_and_name(name)[1]))
        found = [host for each in names for host in await self._store.hosts(HostQuery(name=each))]
        return hosts_called(name, found)

    async def _why_kept(self, host: HostState) -> str:
        """Why the host cannot be deleted; empty if it can."""
        if host.kind == NODE:
            return "is a bare-metal node, and Ironic has it: delete the node there, and it goes from here"
        unheard = self._registry.unheard(host.id)
        if host.up or unheard is not None:
            heard = "is up" if unheard is None else f"was heard {unheard.total_seconds():.0f} s ago"
            return f"{heard}: stop its compute, wait until the host is silent, and delete it then"
        there = host_in_cell(host.cell, host.name)
        if found := await instances_on(self._store, there, INSTANCES_READ_MAX):
            living = [row.told for row in found]
            names = ", ".join(each.name or str(each.id) for each in living[:NAMED_MAX])
            more = "or more " if len(found) == INSTANCES_READ_MAX else ""
            return f"has {len(living)} {more}instances ({names}): evacuate or delete them first"
        if moves := await self._store.changes(ChangeQuery(host=there, limit=1)):
            return f"instance {moves[0].instance} is on its way ({moves[0].what}) from it or to it: wait for the end of that"
        used = {name: each.used for name, each in use_of(self._picture, host.id).classes.items() if each.used}
        if used:
            amounts = ", ".join(f"{amount} {name}" for name, amount in sorted(used.items()))
            return (
                f"placement has given out {amounts} of it: `moor provider` shows to whom. What it holds for instances that have left it is "
                "released when it is set dead"
            )
        return ""

    async def _why_not_unprovided(self, host: HostState) -> str:
        """Delete the host's providers, those below others first. Returns why one of them stays; empty if none does."""
        if self._picture.placed_in(host.id) != host.cell:
            # Placement does not have it, or has another cell's host by this id.
            return ""
        tree = self._picture.trees.by_root[host.id.int]
        for level in _from_below([*tree.providers.values()]):
            answers = await self._ask_all([DeleteProvider(id=each.id) for each in level])
            for provider, answer in zip(level, answers, strict=True):
                if why := _why_not_deleted(answer):
                    return f"its provider {provider.name} stays in placement: {why}"
        return ""

    async def _forgotten(self, host: HostState) -> HostState | str:
        """Delete the host's row, after its cell was told that no mode is set any more: a host that comes back is a new one. Returns
        the row's last state, or why it is not deleted.
        """
        for is_told in (False, True):
            async with self._store.transaction() as transaction:
                rows = await transaction.lock_hosts((host.id,), ())
                if self._registry.unheard(host.id) is not None:
                    return "was heard meanwhile, and its providers are deleted: its compute reports them when it starts again"
                after = [without_setting(row, self._clock()) for row in rows]
                untold = [structs.replace(row, sequence=row.sequence + 1) for row in after if row is not None]
                if not untold:
                    await transaction.forget_hosts([host.id])
                elif not is_told:
                    await transaction.save_hosts(untold, self._clock())
            if not untold:
                last = rows[0] if rows else host
                self._registry.hear_deleted(last)
                return last
            self._registry.learn(untold)
            await self._tell_cells()
        return (
            f"cell {host.cell} could not be told yet that it is not set {host.setting.mode} any more; its providers are deleted: "
            "send this order again when the cell can be reached"
        )


def _from_below(providers: Sequence[ProviderState]) -> Iterator[list[ProviderState]]:
    """These providers in groups: each after those that are below it."""
    left = [*providers]
    while left:
        parents = {each.parent for each in left}
        lowest = [each for each in left if each.id not in parents]
        yield lowest
        left = [each for each in left if each.id in parents]


def _why_not_deleted(answer: Message) -> str:
    if not isinstance(answer, WriteAnswered):
        raise WrongAnswer(f"placement answered an order to delete a provider by {answer!r}")
    match answer.verdict:
        case Done() | UnknownProvider():
            return ""
        case InventoryInUse(resource=resource, used=used):
            return f"{used} {resource} of it are in use"
        case verdict:
            return f"it was changed at this moment ({type(verdict).__name__}): send the order again"
