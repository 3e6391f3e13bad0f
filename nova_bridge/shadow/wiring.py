"""The parts of a worker in shadow mode, put together."""

import asyncio
import logging
import random
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

from bus.rabbit.rpc import ForeignQueue, RabbitRpc, RpcDelivery
from bus.workers.consuming import consumer
from bus.workers.sending import Link
from engine.flavors import InstanceId
from engine.picture.picture import Picture
from engine.requests import COUNT_MAX
from kit.clock import now
from kit.errors import Operational
from kit.metrics import Labels, Readings
from kit.parts import Periodic, Supervised
from kit.process import Part
from kit.settings import BadSetting
from nova_bridge.cloud_reading import NovaCloudKeeper
from nova_bridge.envelope import RefusedError, RpcRequest, read_envelope
from nova_bridge.hosts import NovaHosts, NovaNews
from nova_bridge.placement_api import PlacementApi
from nova_bridge.placement_books import HttpBooks
from nova_bridge.request_spec import NovaRequestReader
from nova_bridge.serving import SELECT, VERSION, NovaCasts, open_rpc, rpc_queues
from nova_bridge.settings import NOVA, NovaSettings
from nova_bridge.shadow.choosing import LOOK_AT_S, AsksServer, CopiedRequest, ShadowChooser, ShadowFollower
from nova_bridge.shadow.notes import NotesFile, open_notes
from nova_bridge.wiring import LOOK_S, OpenedNova, follow_settings, forced_plugins, plugins_of
from scheduler_worker.metrics import SHADOW_COPIES
from scheduler_worker.requests.reading import RequestReader
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.wiring import STANDARD, Staged

# Hears copies of Nova's scheduler RPC on a queue of its own, and has the requests among them decided. Nothing is ever answered.
#
# A copy is acknowledged when it is decided, so a worker that dies leaves it to another one. A message that cannot be read is only told
# of: nova-scheduler has it, too.


log = logging.getLogger(__name__)

# How many copies are decided at once. Each is acknowledged with its batch.
BATCH_MAX = 50
PREFETCH = 2 * BATCH_MAX
# Nova's callers send a request again after a broken connection.
IDS_REMEMBERED_MAX = 1000


class ShadowListener(Supervised):
    def __init__(
        self,
        link: Link,
        queues: Sequence[ForeignQueue],
        chooser: ShadowChooser,
        follower: ShadowFollower,
        hosts: NovaHosts,
        *,
        refresh: Callable[[], None],
        look_again: Callable[[], None],
        clock: Callable[[], datetime],
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("hear copies of Nova's scheduler RPC", self._hear, is_needed=True, chance=chance)
        self._link = link
        self._queues = queues
        self._chooser = chooser
        self._follower = follower
        self._refresh = refresh
        self._casts = NovaCasts(hosts, look_again)
        self._clock = clock
        self._known: OrderedDict[str, None] = OrderedDict()
        self._counted = Counter[Labels]()

    @property
    def readings(self) -> Readings:
        return (SHADOW_COPIES.numbers(self._counted),)

    async def _hear(self) -> None:
        opens = partial(open_rpc, queues=self._queues, prefetch=PREFETCH)
        async with consumer(self._link, self.status, opens) as rpc:
            while True:
                await self._take_all(rpc, await rpc.receive())

    async def _take_all(self, rpc: RabbitRpc, deliveries: Sequence[RpcDelivery]) -> None:
        for start in range(0, len(deliveries), BATCH_MAX):
            some = deliveries[start : start + BATCH_MAX]
            copies = [copied for each in some if (copied := self._read(each)) is not None]
            if copies:
                await self._decide(copies)
            for each in some:
                await rpc.acknowledge(each.tag)

    async def _decide(self, copies: Sequence[CopiedRequest]) -> None:
        """Choose for these, and have Nova's choices found out. If placement does not answer, they are left undecided: later, the cloud
        will be another one.
        """
        self._refresh()
        try:
            # What Nova has claimed for earlier requests counts, and not our choices for them.
            await self._follower.look_at_new()
            choices = await self._chooser.choose(copies)
        except Operational as problem:
            log.warning("%d requests are not decided in shadow mode: %s", len(copies), problem)
            self._counted[("undecided",)] += len(copies)
            return
        except Exception:
            if len(copies) > 1:
                # One of them must not spoil the others.
                for each in copies:
                    await self._decide([each])
                return
            log.exception("a request could not be decided in shadow mode")
            self._counted[("undecided",)] += 1
            return
        self._counted[("decided",)] += len(copies)
        self._follower.follow(choices)

    # Messages

    def _read(self, delivery: RpcDelivery) -> CopiedRequest | None:
        """The request in this message, if it is one; casts are taken at once."""
        try:
            request = read_envelope(delivery.body)
            if request.method == SELECT and request.call is not None and not request.namespace:
                return self._copied(request)
            self._take_cast(request)
        except RefusedError as refused:
            self._counted[("unreadable",)] += 1
            log.warning("a message on %s is left out: %s", delivery.queue, refused)
        except Exception:
            self._counted[("unreadable",)] += 1
            log.exception("a message of %d bytes on %s could not be read", len(delivery.body), delivery.queue)
        return None

    def _take_cast(self, request: RpcRequest) -> None:
        is_known = VERSION.can_serve(request.version) and self._casts.know(request.method)
        if request.namespace or not is_known:
            self._counted[("left",)] += 1
            return
        self._casts.take(request)
        self._counted[(request.method,)] += 1

    def _copied(self, request: RpcRequest) -> CopiedRequest | None:
        assert request.call is not None, "only calls are requests"
        if not VERSION.can_serve(request.version):
            raise RefusedError("version", str(request.version), f"it is known up to version {VERSION}")
        key = request.unique_id or request.call.id
        if key in self._known:
            self._counted[("repeated",)] += 1
            return None
        self._known[key] = None
        while len(self._known) > IDS_REMEMBERED_MAX:
            self._known.popitem(last=False)
        return CopiedRequest(
            at=self._clock(),
            request_id=request.caller.request_id,
            project=request.caller.project_id,
            args=request.args,
            instances=_instances_in(request.args),
        )


def _instances_in(args: Mapping[str, object]) -> tuple[InstanceId, ...]:
    """The instances of the request. Raises RefusedError: without their ids nothing can be compared."""
    ids = args.get("instance_uuids")
    if not isinstance(ids, list) or not 1 <= len(ids) <= COUNT_MAX:
        raise RefusedError("instance_uuids", ids, f"it must be a list of 1 to {COUNT_MAX} ids")
    try:
        return tuple(dict.fromkeys(InstanceId(UUID(str(each))) for each in ids))
    except ValueError:
        raise RefusedError("instance_uuids", ids, "each must be an id, as 8-4-4-4-12 hex digits") from None


PRUNE_S = 3600.0
# The queue of copies of Nova's requests, which all workers in the shadow share: it never grows without bounds, nor stays after the last worker in the shadow.
COPIES, COPIES_MAX, COPIES_EXPIRE_MS = "moorage.shadow", 1000, 300_000


def shadow_queues(settings: NovaSettings, unique: str) -> tuple[ForeignQueue, ...]:
    """The queue of copies, and one for casts to all schedulers. Both disappear by themselves, and neither ever makes Nova wait."""
    topic, _, fanout = rpc_queues(settings, unique)
    copies = ForeignQueue(
        COPIES,
        topic.exchange,
        topic.key,
        arguments={
            "x-expires": COPIES_EXPIRE_MS,
            "x-max-length": COPIES_MAX,
            "x-overflow": "drop-head",
        },
    )
    return copies, fanout


def shadow_parts(
    nova: Link,
    knows: NovaCloudKeeper,
    settings: NovaSettings,
    choice: SchedulerSettings,
    *,
    api: PlacementApi,
    beside: tuple[Part, ...] = (),
    asks_server: AsksServer | None = None,
    clock: Callable[[], datetime] = now,
    chance: random.Random | None = None,
    look_again: Callable[[], None] = lambda: None,
    look_s: float = LOOK_AT_S,
) -> tuple[Part, ...]:
    """Everything that such a worker runs, as `nova_parts` for one that answers. Raises OSError if the file of notes cannot be read."""
    chance = chance or random.Random(secrets.randbits(64))
    picture, plugins = Picture(), plugins_of(choice)
    forced = forced_plugins(plugins)
    books = HttpBooks(api, picture, chance=chance)
    hosts = NovaHosts(picture)
    known = asyncio.Event()

    def refresh() -> None:
        if (cloud := knows.cloud) is not None:
            hosts.take(cloud)
            known.set()

    async def take_over() -> None:
        refresh()

    async def catch_up() -> None:
        await books.catch_up()
        refresh()

    news = NovaNews(picture, knows, look_again, clock)

    async def find_names() -> None:
        await news.before_refusal(is_unknown=True)
        refresh()

    notes = NotesFile(Path(settings.shadow_file), clock=clock)
    requests = RequestReader(STANDARD, timedelta(days=1), plugins)
    chooser = ShadowChooser(
        picture,
        hosts,
        NovaRequestReader(requests.spec_of, plugins.image_keys),
        plugins,
        forced,
        held=api.held_by_each,
        catch_up=catch_up,
        find_names=find_names,
        alternates=lambda: choice.alternates_max,
        salt=chance.getrandbits(32),
        draw=lambda: chance.getrandbits(32),
    )
    follower = ShadowFollower(
        chooser, notes.add, wait_s=settings.rpc_timeout_s, look_s=look_s, clock=clock, asks_server=asks_server
    )
    listener = ShadowListener(
        nova,
        shadow_queues(settings, secrets.token_hex(16)),
        chooser,
        follower,
        hosts,
        refresh=refresh,
        look_again=look_again,
        clock=clock,
        chance=chance,
    )

    async def prune() -> None:
        notes.prune()

    renewing = follow_settings(choice, plugins, forced)
    following = FollowingPart(follower, look_s, chance)
    pruning = Periodic("delete old notes", prune, PRUNE_S, is_cut_short=True, chance=chance)
    looking = Periodic("take over what Nova knows", take_over, LOOK_S, is_needed=True, chance=chance)
    first: tuple[Part, ...] = (books, looking, *beside)
    ready = (books.whole, known)
    return (Staged(first, ready, (listener, following, pruning), seen=(follower, renewing)),)


class FollowingPart(Periodic):
    """Looks for Nova's choices, and notes what is known when the worker stops."""

    def __init__(self, follower: ShadowFollower, look_s: float, chance: random.Random) -> None:
        super().__init__("look what Nova chose", follower.look, look_s / 2, is_cut_short=True, chance=chance)
        self._follower = follower

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self._follower.end_all("the worker stopped before Nova's choice was seen")


def parts_in_shadow(nova: OpenedNova, settings: NovaSettings, choice: SchedulerSettings) -> tuple[Part, ...]:
    """Raises BadSetting if the file of notes cannot be written."""
    check_file(settings)
    return shadow_parts(
        nova.link,
        nova.keeper,
        settings,
        choice,
        api=nova.placement,
        beside=(nova.keeper,),
        asks_server=nova.api.server,
        look_again=nova.keeper.read_soon,
    )


def check_file(settings: NovaSettings) -> None:
    """Raise BadSetting if the file of notes cannot be written: it is only opened for what is compared later."""
    try:
        open_notes(Path(settings.shadow_file)).close()
    except OSError as problem:
        raise BadSetting(
            f"{NOVA.name}.shadow_file",
            settings.shadow_file,
            NOVA.variable("shadow_file"),
            f"it cannot be written: {problem.strerror or problem}",
        ) from None
