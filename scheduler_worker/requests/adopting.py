"""Instances that another cloud has built: they are taken over with what they hold, and given back.

The share comes with the order, so nothing is chosen. It is claimed first, and the row is written after that, with the order to
the cell. A repeated order finds the claim or the row, and changes nothing.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

import msgspec
from msgspec import Struct, structs

from bus.messages.audit import AdoptInstance, GiveBackInstance
from bus.messages.build import BuildInstance, BuildRejected, InstancesFound
from bus.messages.placement import ClaimAnswered, ClaimResources, ReleaseClaim
from bus.workers.handlers import Answer, Handlers, Received, Said, Tell
from engine.flavors import InstanceId
from engine.hosts import NODE, HostState
from engine.inventories import ServerGroup
from engine.refusals import AlreadyClaimed, Claimed, ClaimVerdict
from kit.errors import WrongAnswer
from scheduler_worker.core.instances.history import encoded
from scheduler_worker.core.instances.lifecycle import (
    adopted_row,
    attempt_of,
    given_back,
    why_not_given_back,
    why_other,
)
from scheduler_worker.core.instances.rows import NO_REQUEST, InstanceRow
from scheduler_worker.outbox import OutboxTransaction
from scheduler_worker.requests.instance_orders import follow
from scheduler_worker.requests.reading import AskAll, RequestReader, rejection
from scheduler_worker.store_sql import AdoptedRow, GroupQuery, HostQuery, SchedulerStore

_encoded = msgspec.msgpack.Encoder().encode
_EXTRA_SPECS, _IMAGE_PROPERTIES = "flavor.extra_specs.", "image_properties."


class _Adoption(Struct):
    """An order while it is worked on. `attempt` is None if the instance is here already."""

    ask: Received[AdoptInstance]
    known: InstanceRow | None
    attempt: int | None
    spec: bytes = b""
    group: ServerGroup | None = None
    kind: str = ""
    refusal: BuildRejected | None = None
    is_new_claim: bool = False

    @property
    def order(self) -> AdoptInstance:
        return self.ask.message

    def refuse(self, field: str, value: object, reason: str) -> None:
        self.refusal = rejection(field, value, reason, self.order.request_id)


class InstanceAdopter:
    def __init__(
        self,
        store: SchedulerStore,
        reader: RequestReader,
        ask_all: AskAll,
        clock: Callable[[], datetime],
        *,
        timeout_s: int,
    ) -> None:
        self._store = store
        self._reader = reader
        self._ask_all = ask_all
        self._clock = clock
        self._timeout = timedelta(seconds=timeout_s)

    def handlers(self) -> Handlers:
        return {AdoptInstance: self.on_adopts, GiveBackInstance: self.on_give_backs}

    async def on_adopts(
        self, asks: Sequence[Received[AdoptInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        """Answers with each instance as its row shows it, or with the reason of a refusal."""
        adoptions = await self._read(asks)
        await self._claim([each for each in adoptions if each.refusal is None and each.attempt is not None])
        rows = await self._write(adoptions, transaction)
        said: list[Said] = []
        for each in adoptions:
            if each.refusal is not None:
                said.append(Answer(each.ask, each.refusal))
                if each.is_new_claim and each.attempt is not None:
                    said.append(Tell(self._release(each), each.ask))
                continue
            row = rows.get(each.order.instance) or each.known
            said.append(Answer(each.ask, InstancesFound(instances=() if row is None else (row.told,))))
        await transaction.note(rows.values())
        causes = {each.order.instance: each.ask for each in adoptions}
        for id_, row in rows.items():
            said += transaction.tells(row, causes[id_])
        return said

    async def on_give_backs(
        self, asks: Sequence[Received[GiveBackInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        now = self._clock()
        rows = await self._store.rows_of([ask.message.instance for ask in asks])
        hosts = await self._hosts_of({row.told.host for row in rows.values()})
        return await follow(asks, partial(self._given_back, hosts, now), transaction)

    def _given_back(
        self,
        hosts: Mapping[tuple[str, str], HostState],
        now: datetime,
        row: InstanceRow | None,
        order: GiveBackInstance,
    ) -> InstanceRow | BuildRejected:
        if row is None or row.told.request_id == NO_REQUEST:
            return rejection("instance", order.instance, "there is no such instance")
        after = given_back(row, now)
        if after is row:
            return row
        host = hosts.get((row.told.cell, row.told.host))
        why = why_not_given_back(row) or _why_not_fenced(host, row.told.host)
        return rejection("instance", order.instance, why) if why else after

    async def _hosts_of(self, names: set[str]) -> dict[tuple[str, str], HostState]:
        found = [host for name in sorted(names) for host in await self._store.hosts(HostQuery(name=name))]
        return {(host.cell, host.name): host for host in found}

    async def _read(self, asks: Sequence[Received[AdoptInstance]]) -> list[_Adoption]:
        rows = await self._store.rows_of([ask.message.instance for ask in asks])
        hosts = await self._hosts_of({ask.message.host for ask in asks})
        named = {ask.message.group for ask in asks if ask.message.group is not None}
        groups = await self._store.groups(GroupQuery(ids=tuple(sorted(named)))) if named else ()
        of_id = {each.definition.id: each.definition for each in groups}
        adoptions: dict[InstanceId, _Adoption] = {}
        several: list[_Adoption] = []
        for ask in asks:
            order, known = ask.message, rows.get(ask.message.instance)
            one = _Adoption(ask, known, attempt_of(known))
            if (first := adoptions.get(order.instance)) is not None:
                if first.order != order:
                    one.refuse("instance", order.instance, "two different orders name it at the same time")
                one.attempt = None
            several.append(one)
            adoptions.setdefault(order.instance, one)
            if one.refusal is None:
                self._judge(
                    one,
                    hosts.get((order.of_cell, order.host)),
                    of_id.get(order.group) if order.group else None,
                )
        return several

    def _judge(self, one: _Adoption, host: HostState | None, group: ServerGroup | None) -> None:
        order = one.order
        if one.known is not None and one.attempt is None:
            if why := why_other(one.known, order):
                one.refuse("instance", order.instance, why)
            return
        if why := _why_not_fenced(host, order.host):
            one.refuse("host", f"{order.of_cell}/{order.host}", why)
        elif host is not None and host.id != order.share.host:
            one.refuse("share.host", order.share.host, f"host {order.host} is provider {host.id} here")
        elif host is not None and host.kind == NODE and order.state != "active":
            one.refuse(
                "state", order.state, "an instance on a bare-metal node is taken over while it is active"
            )
        elif order.group is not None and group is None:
            one.refuse("group", order.group, "there is no such server group")
        else:
            one.group, one.kind = group, "" if host is None else host.kind
            spec = self._spec_of(order, group)
            if isinstance(spec, BuildRejected):
                one.refusal = structs.replace(spec, request_id=order.request_id)
            else:
                one.spec = spec

    def _spec_of(self, order: AdoptInstance, group: ServerGroup | None) -> bytes | BuildRejected:
        """The needs of the instance, for later moves. Extra specs and image properties that no filter here reads stay in its flavor,
        and count for nothing.
        """
        build = BuildInstance(
            request_id=order.request_id,
            flavor=order.flavor,
            image_properties=order.image_properties,
            availability_zone=order.availability_zone,
            project=order.project,
            image=order.image,
        )
        spec = self._reader.spec_of(readable := build)
        while isinstance(spec, BuildRejected) and (lesser := _without(readable, spec.field)) is not None:
            spec = self._reader.spec_of(readable := lesser)
        if isinstance(spec, BuildRejected):
            return spec
        return encoded(structs.replace(spec, server_group=group) if group else spec, build)

    async def _claim(self, adoptions: Sequence[_Adoption]) -> None:
        if not adoptions:
            return
        now = self._clock()
        claims = [
            ClaimResources(
                cell=each.order.of_cell,
                consumer=each.order.instance,
                attempt=each.attempt or 1,
                issued_at=now,
                share=each.order.share,
                project=each.order.project,
                user=each.order.user,
                group=each.group,
                # A node with an instance is reserved, so that nobody else may claim it.
                takes_reserved=each.kind == NODE,
            )
            for each in adoptions
        ]
        for each, answer in zip(adoptions, await self._ask_all(claims), strict=True):
            if not isinstance(answer, ClaimAnswered):
                raise WrongAnswer(f"placement answered a claim by {answer!r}")
            _judge_verdict(each, answer.verdict)

    async def _write(
        self, adoptions: Sequence[_Adoption], transaction: OutboxTransaction
    ) -> dict[InstanceId, InstanceRow]:
        """Write the rows of those that have their claim. Returns the rows that have something to say."""
        granted = [each for each in adoptions if each.refusal is None and each.attempt is not None]
        if not granted:
            return {}
        store = await transaction.begun()
        now = self._clock()
        locked = await store.lock(sorted({each.order.instance for each in granted}))
        rows: dict[InstanceId, InstanceRow] = {}
        new: list[AdoptedRow] = []
        for each in granted:
            known = locked.get(each.order.instance)
            if attempt_of(known) != each.attempt:
                # Another worker has just done it.
                each.known, each.attempt, each.is_new_claim = known, None, False
                continue
            row = adopted_row(
                each.order,
                known,
                each.attempt or 1,
                now,
                self._timeout,
                spec=each.spec,
                group=each.group,
                kind=each.kind,
                by=each.ask.by,
            )
            rows[row.id] = row
            if known is None:
                digest = hashlib.sha256(_encoded(each.order)).digest()
                new.append(AdoptedRow(row, each.order.number, digest))
        refused = await store.adopt(new)
        # Another worker may have written the same row just now: then it is here, and its claim stays.
        there = await store.lock(sorted(refused)) if refused else {}
        for each in granted:
            id_ = each.order.instance
            if id_ not in refused:
                continue
            del rows[id_]
            if id_ in there:
                each.known, each.is_new_claim = there[id_], False
            else:
                why = f"its instance number {each.order.number} is another one here"
                each.refuse("request_id", each.order.request_id, why)
        added = {each.row.id for each in new}
        await store.save([row for id_, row in rows.items() if id_ not in added])
        return rows

    def _release(self, one: _Adoption) -> ReleaseClaim:
        return ReleaseClaim(
            cell=one.order.of_cell,
            consumer=one.order.instance,
            attempt=one.attempt or 1,
            issued_at=self._clock(),
            project=one.order.project,
        )


def _why_not_fenced(host: HostState | None, name: str) -> str:
    if host is None:
        return f"there is no host {name} here: start its compute first"
    if host.kind == NODE:
        # It is reserved while Ironic has an instance there.
        return ""
    if host.setting.mode != "draining":
        return f"host {name} is {host.setting.mode} here, and must be draining: nothing else may be built on it meanwhile"
    return ""


def _without(build: BuildInstance, field: str) -> BuildInstance | None:
    """The request without the extra spec or the image property that this field names; None if it names neither."""
    if field.startswith(_EXTRA_SPECS) and build.flavor is not None:
        key = field.removeprefix(_EXTRA_SPECS)
        kept = {name: value for name, value in build.flavor.extra_specs.items() if name != key}
        if len(kept) < len(build.flavor.extra_specs):
            return structs.replace(build, flavor=structs.replace(build.flavor, extra_specs=kept))
    if field.startswith(_IMAGE_PROPERTIES):
        key = field.removeprefix(_IMAGE_PROPERTIES)
        kept = {name: value for name, value in build.image_properties.items() if name != key}
        if len(kept) < len(build.image_properties):
            return structs.replace(build, image_properties=kept)
    return None


def _judge_verdict(one: _Adoption, verdict: ClaimVerdict) -> None:
    match verdict:
        case Claimed():
            one.is_new_claim = True
        case AlreadyClaimed(share=held) if held.host == one.order.share.host and sorted(
            held.amounts, key=str
        ) == sorted(one.order.share.amounts, key=str):
            pass
        case AlreadyClaimed(share=held):
            one.refuse("share", _in_words(one.order.share), f"it holds another share here: {_in_words(held)}")
        case _:
            one.refuse("share", _in_words(one.order.share), f"placement refuses it: {_in_words(verdict)}")


def _in_words(value: Struct) -> str:
    return msgspec.json.encode(value).decode()
