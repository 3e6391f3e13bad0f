"""What the `moor` command has of this package, by entry points: the worker `moor run nova-scheduler`, and the Nova that `moor audit`
asks about consumers without a cell.
"""

# ruff: noqa: PLC0415 - few runs need an HTTP client and what answers Nova
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Struct

from engine.inventories import ConsumerId
from kit.errors import UNREADABLE
from moor.client.books.rules import FirstLook, NovaToAsk
from moor.flags import option
from moor.options import (
    NovaBusUrl,
    Operating,
    SchedulerFlags,
    command_settings,
    fail,
    found,
    option_of,
    run_worker,
    scheduler_flags,
    tell,
    tuned,
)
from moor.secret_files import replace_private
from moor.settings import GENERAL, Settings
from moor.worker_settings import BUS, OPENSTACK, SCHEDULER
from nova_bridge.settings import NOVA

# In the directory of `moor up`: what Nova did not know at earlier looks.
LOOKS = "unknown-to-nova.json"


def nova_scheduler(
    nova_bus: NovaBusUrl = "",
    *,
    api_db: Annotated[str, option_of(GENERAL, "nova_api_db", "--nova-api-db", metavar="URL")] = "",
    shadow: Annotated[
        bool,
        option(
            "--shadow",
            help="Decide copies of the requests, claim and answer nothing, and note what nova-scheduler chose: `moor nova shadow`.",
        ),
    ] = False,
    settings: SchedulerFlags = None,
    operating: Operating,
) -> None:
    """A scheduler in the place of nova-scheduler: it answers nova-conductor on Nova's RabbitMQ, and claims in placement over HTTP.

    It chooses as MOOR_SCHEDULER_... say, reads Nova as MOOR_NOVA_... say (its compute API, its API database and its
    notifications), and claims in the placement of MOOR_NOVA_PLACEMENT_URL. It has no database and no broker of ours. Any number of
    them may run, also beside nova-schedulers.
    """
    operating.begin()
    from nova_bridge.shadow.wiring import parts_in_shadow
    from nova_bridge.wiring import parts_in_place, run

    role, parts_of = ("nova-shadow", parts_in_shadow) if shadow else ("nova-scheduler", parts_in_place)
    run_worker(
        run(
            role,
            parts_of,
            command_settings(nova_bus=nova_bus).addresses,
            tuned(NOVA),
            tuned(SCHEDULER, others=scheduler_flags(settings)),
            account=tuned(OPENSTACK),
            api_db=api_db,
            bus=tuned(BUS),
            health_at=operating.health_listen,
        )
    )


@asynccontextmanager
async def nova_to_ask(settings: Settings) -> AsyncIterator[NovaToAsk | None]:
    """How Nova is asked what it knows; None if the settings name none."""
    named = found().of(NOVA)
    if not named.url:
        yield None
        return
    from kit.login import CATALOGUE
    from nova_bridge.cloud_reading import NovaApi

    account = found().of(OPENSTACK)
    api = NovaApi(named.url, account)
    try:
        name = account.keystone_url if named.url == CATALOGUE else named.url
        looks = LooksInFile(settings.data / LOOKS, name)
        yield NovaToAsk(api.unknown, looks.load, looks.save, timedelta(seconds=named.freed_after_s))
    finally:
        await api.close()


class _Kept(Struct, frozen=True):
    nova: str
    looks: tuple[FirstLook, ...]


class LooksInFile:
    """A file that remembers which consumers Nova did not know, and since when: `moor audit --heal` may be run by a timer.

    `nova` names the Nova that was asked: looks of another one count for nothing.
    """

    def __init__(self, file: Path, nova: str) -> None:
        self._file = file
        self._nova = nova

    def load(self) -> Mapping[ConsumerId, FirstLook]:
        try:
            kept = msgspec.json.decode(self._file.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return {}
        except OSError as problem:
            fail(f"{self._file} cannot be read: {problem.strerror or problem}")
        except UNREADABLE as problem:
            tell(
                f"{self._file} is not as this command writes it, and counts for nothing: {problem}", "yellow"
            )
            return {}
        if kept.nova != self._nova or any(each.at.tzinfo is None for each in kept.looks):
            return {}
        return {each.consumer: each for each in kept.looks}

    def save(self, looks: Mapping[ConsumerId, FirstLook]) -> None:
        if not looks and not self._file.exists():
            return
        ordered = tuple(looks[id_] for id_ in sorted(looks))
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_private(self._file, msgspec.json.encode(_Kept(self._nova, ordered)).decode() + "\n")
        except OSError as problem:
            fail(
                f"{self._file} cannot be written, so no later audit would know this look: {problem.strerror or problem}"
            )
