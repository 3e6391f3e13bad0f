"""The parts of a worker in shadow mode, put together."""

import asyncio
import random
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from bus.clock import now
from bus.configuration.live import SettingsFollower
from bus.parts import Periodic
from bus.process import Part
from bus.rabbit.rpc import ForeignQueue
from bus.workers.link import Link
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.nova.cloud.port import KnowsNovaCloud
from scheduler_worker.nova.request_spec import NovaRequestReader
from scheduler_worker.nova_shadow.choosing import ShadowChooser
from scheduler_worker.nova_shadow.following import LOOK_AT_S, AsksServer, ShadowFollower
from scheduler_worker.nova_shadow.listening import ShadowListener
from scheduler_worker.nova_shadow.notes_file import NotesFile
from scheduler_worker.nova_shadow.settings import NovaShadowSettings
from scheduler_worker.nova_worker.hosts import NovaHosts
from scheduler_worker.nova_worker.news import NovaNews
from scheduler_worker.nova_worker.over_http.api import PlacementApi
from scheduler_worker.nova_worker.over_http.books import HttpBooks
from scheduler_worker.nova_worker.queues import rpc_queues
from scheduler_worker.nova_worker.settings import NovaSchedulerSettings
from scheduler_worker.nova_worker.wiring import LOOK_S, forced_plugins, plugins_of
from scheduler_worker.requests.request_reader import RequestReader
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.wiring.deciders import STANDARD
from scheduler_worker.wiring.staged import Staged

PRUNE_S = 3600.0
# Of the queue of copies: it never grows without bounds, nor stays after the last worker in the shadow.
COPIES_MAX, COPIES_EXPIRE_MS = 1000, 300_000


def shadow_queues(
    settings: NovaSchedulerSettings, shadow: NovaShadowSettings, unique: str
) -> tuple[ForeignQueue, ...]:
    """The queue of copies, and one for casts to all schedulers. Both disappear by themselves, and neither ever makes Nova wait."""
    topic, _, fanout = rpc_queues(settings, unique)
    copies = ForeignQueue(
        shadow.queue,
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
    knows: KnowsNovaCloud,
    settings: NovaSchedulerSettings,
    shadow: NovaShadowSettings,
    choice: SchedulerSettings,
    *,
    api: PlacementApi,
    refresh_s: float,
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
    books = HttpBooks(api, picture, refresh_s=refresh_s, chance=chance)
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

    notes = NotesFile(Path(shadow.file), clock=clock)
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
        chooser, notes.add, wait_s=shadow.wait_s, look_s=look_s, clock=clock, asks_server=asks_server
    )
    listener = ShadowListener(
        nova,
        shadow_queues(settings, shadow, secrets.token_hex(16)),
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

    def take(fresh: SchedulerSettings) -> None:
        renewed = plugins_of(fresh)
        plugins.become(renewed)
        forced.become(forced_plugins(renewed))

    renewing = SettingsFollower(choice, take)
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
