"""Hosts are lost on real servers, one after the other. Meanwhile each two of the workers are cut off together for a while, from the broker and from
their database. Two keepers recover what is lost.

A lost host is dead, or only silent: then its guests go on until a fence has switched it off. A fence is quick, late, hangs, fails, or lies. No
guest is ordered elsewhere before its host is off, by the log of the fences; and each guest of a lost host runs in the end, or a person
was asked about it.

`LOST_HOSTS=1000 LOST_PAIRS=21` makes it as large as the one that docs/benchmarks.md tells of.
"""

import asyncio
import itertools
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy.engine import make_url

from bus.message import Message
from bus.messages.hosts import HostSet, SetHost
from bus.messages.keeping import AskCampaigns, CampaignHost, CampaignsFound, Movement
from bus.messages.policies import KeepingPolicy, PoliciesFound, SetPolicy
from bus.messages.questions import AnswerQuestion, AskQuestions, Question, QuestionsFound
from kit.parts import batches_of
from tests.adversity.losable_hosts import LOOK_S
from tests.adversity.real_cloud import SMALL, RealCloud, a_build, real_cloud
from tests.contracts.rabbitmq_under_test import Proxy
from tests.contracts.sql_stores import a_session
from tests.running import closing
from tests.waiting import until

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.postgresql,
    pytest.mark.proof,
    pytest.mark.timeout(3600),
]


def size(name: str, usual: int) -> int:
    return int(os.environ.get(f"LOST_{name}", usual))


HOSTS, PAIRS = size("HOSTS", 40), size("PAIRS", 6)
DOWN_S, FENCE_S, FENCE_S_MAX = size("DOWN_S", 6), 2, 6
RACK = 5
GUESTS = HOSTS * 3
KEEPERS, SCHEDULERS = ("keeper-1", "keeper-2"), ("scheduler-1", "scheduler-2")
CUT = (*KEEPERS, *SCHEDULERS, "placement-1", "conductor-c2", "compute-c2")
FATES = ("dead", "silent", "fence is late", "fence hangs", "fence fails", "fence lies")
# Shorter than hosts may be silent, and longer.
STALLS_S = (DOWN_S / 2, DOWN_S * 3)
LONG_S = float(size("LONG_S", 300))
# A host sees its file, and is off, before the fence says so.
OFF = """touch "off/$1"; sleep 0.5; echo "$1 $(date +%s.%N)" >> log"""
FENCE = f"""#!/bin/sh
cd "$(dirname "$0")/.."
echo "$1" >> began
case "$(cat "how/$1" 2>/dev/null)" in
    "fence is late") setsid ./late "$1" > /dev/null 2>&1 & sleep 100 ;;
    "fence hangs") sleep 100 ;;
    "fence fails") echo "no answer"; exit 1 ;;
    "fence lies") sleep {FENCE_S} ;;
    *) sleep {FENCE_S}; {OFF} ;;
esac
"""
LATE = f"""#!/bin/sh
cd "$(dirname "$0")"
sleep {FENCE_S_MAX + 3}
{OFF}
"""
LOG = """
    CREATE TABLE ledger_log (number bigserial PRIMARY KEY, body bytea NOT NULL);
    CREATE FUNCTION log_movement() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
        $$ BEGIN INSERT INTO ledger_log (body) VALUES (NEW.body); RETURN NULL; END $$;
    CREATE TRIGGER log_movement AFTER INSERT OR UPDATE ON keeper_movements FOR EACH ROW EXECUTE FUNCTION log_movement();
"""


class Links:
    """The ways of workers to their broker and their database, which the test stalls."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Proxy] = {}
        self._ports: dict[tuple[str, str], int] = {}

    async def lay(self, url: str, *names: str) -> None:
        """Lay the ways of these workers to this server."""
        server = make_url(url)
        for name in names:
            proxy = Proxy(server.host or "127.0.0.1", server.port or 0)
            await proxy.start()
            self._known[name, len(self._known)] = proxy
            self._ports[name, str(server.port)] = proxy.port

    def way(self, name: str, url: str) -> str:
        server = make_url(url)
        port = self._ports.get((name, str(server.port)))
        if port is None:
            return url
        return server.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)

    def stall(self, *names: str, on: bool) -> None:
        for (name, _), proxy in self._known.items():
            if name in names:
                proxy.stall(on=on)

    async def close(self) -> None:
        for proxy in self._known.values():
            await proxy.close()


class Losing:
    """A cloud whose hosts the test loses."""

    def __init__(self, here: RealCloud, links: Links, folder: Path) -> None:
        self.here = here
        self.links = links
        self.folder = folder
        self.lost: set[str] = set()

    async def answered(self, question: Message, kind: type[Message]) -> Any:
        found = await self.here.client.ask(question)
        assert isinstance(found, kind), found
        return found

    def note_how(self, host: str, how: str) -> None:
        (self.folder / "how" / host).write_text(how)

    def began(self) -> list[str]:
        """The hosts for which a fence has begun, once for each time."""
        file = self.folder / "began"
        return file.read_text().split() if file.exists() else []

    def off(self) -> Mapping[str, float]:
        """Since when each host is off for certain."""
        lines = (self.folder / "log").read_text().splitlines()
        return {name: float(at) for name, at in map(str.split, reversed(lines))}

    def kill(self, *hosts: str) -> None:
        for host in hosts:
            (self.folder / "off" / host).touch()
            with (self.folder / "log").open("a") as log:
                log.write(f"{host} {time.time() + LOOK_S}\n")

    def silence(self, host: str, *, on: bool) -> None:
        file = self.folder / "silent" / host
        file.touch() if on else file.unlink()

    async def questions(self) -> Sequence[Question]:
        found: QuestionsFound = await self.answered(AskQuestions(), QuestionsFound)
        return found.questions

    async def asked_about(self, host: str) -> Question:
        found = await until(
            self.questions,
            f"a person is asked about {host}",
            lambda found: any(each.host == host for each in found),
            within_s=LONG_S,
        )
        (one,) = (each for each in found if each.host == host)
        return one

    async def answer(self, question: Question, answer: str) -> None:
        await self.answered(AnswerQuestion(question=question.id, answer=answer), QuestionsFound)

    async def guests_of(self, host: str) -> list[Any]:
        return [each for each in await self.here.instances() if each.host == host and each.state == "active"]

    async def until_left(self, host: str, guests: Sequence[Any]) -> None:
        wanted = {each.id for each in guests}

        async def left() -> list[object]:
            known = {each.id: each for each in await self.here.instances()}
            return [
                each
                for each in (known[id_] for id_ in wanted)
                if each.host == host or each.state != "active" or (each.move and not each.move.outcome)
            ]

        await until(left, f"all of {host} run elsewhere", lambda found: not found, within_s=LONG_S)

    async def told(self, campaign: str) -> tuple[CampaignHost, ...]:
        found: CampaignsFound = await self.answered(
            AskCampaigns(campaign=campaign, ended=True, limit=500), CampaignsFound
        )
        return found.hosts

    async def granted(self) -> list[Movement]:
        """Each grant that there was."""
        rows = await self.here.rows("SELECT body FROM ledger_log ORDER BY number")
        known: dict[object, Movement] = {}
        for (body,) in rows:
            each = msgspec.json.decode(body, type=Movement)
            if each.life == "granted":
                known.setdefault(each.request_id, each)
        return [*known.values()]

    async def judge(self) -> None:
        """No guest was ordered elsewhere before its host was off; none was from a host that was not lost."""
        off = self.off()
        for each in await self.granted():
            assert each.host in off, f"{each.host} was not off: {each}"
            assert each.granted_at is not None
            assert off[each.host] <= each.granted_at.timestamp(), (
                f"granted before {each.host} was off: {each}"
            )


def hosts_apart(lone: int) -> dict[str, str]:
    """The hosts that the test loses, with their places: those that are lost alone, and a rack."""
    first = HOSTS // 2 - lone - RACK + 1
    places = [*(f"lone{number}" for number in range(lone)), *["rack"] * RACK]
    return {f"c2-host-{number:05d}": place for number, place in enumerate(places, first)}


@asynccontextmanager
async def losing(folder: Path, apart: Mapping[str, str]) -> AsyncIterator[Losing]:
    """A cloud of two cells. The last hosts of the second one are those that the test loses."""
    for name in ("silent", "off", "how", "hooks"):
        (folder / name).mkdir()
    for file, text in (("hooks/power-off", FENCE), ("late", LATE)):
        (folder / file).write_text(text)
        (folder / file).chmod(0o755)
    (folder / "log").touch()
    (folder / "hosts").write_text("".join(f"{name} {place}\n" for name, place in apart.items()))
    async with (
        real_cloud(
            *("c1", "c2"),
            HOST_DOWN_S=str(DOWN_S),
            HOOKS_FOLDER=str(folder / "hooks"),
            LOSABLE_FOLDER=str(folder),
            HOSTS_PER_CELL=str(HOSTS // 2),
            PLACE="big/row{10}",
            SPAWN_MS="20",
            INSTANCES_PER_HOST_MAX="0",
        ) as here,
        closing(Links()) as (links,),
    ):
        for url in (here.under_test.url(), here.database_url):
            await links.lay(url, *CUT)
        here.way = links.way
        async with a_session(here.database_url) as admin:
            await admin.execute(LOG)
        await here.start("placement-1", *SCHEDULERS, *KEEPERS)
        await here.start(*(f"{kind}-{cell}" for cell in ("c1", "c2") for kind in ("conductor", "compute")))
        await here.until_up(HOSTS)
        yield Losing(here, links, folder)


async def booted(cloud: Losing) -> None:
    """Guests everywhere: they are spread over all hosts."""
    for some in batches_of([a_build(number) for number in range(1, GUESTS + 1)], 500):
        await cloud.here.send(some)
    await cloud.here.until_in(GUESTS, "active")


async def lose(cloud: Losing, host: str, fate: str, resume: Callable[[], object]) -> str:
    """Lose this host in this way, and see it recovered, or not. Returns what was seen. `resume` ends what is cut off."""
    guests = await cloud.guests_of(host)
    began, at = len(cloud.began()), time.time()
    cloud.lost.add(host)
    cloud.note_how(host, fate)
    cloud.kill(host) if fate == "dead" else cloud.silence(host, on=True)
    match fate:
        case "fence is late":
            asked = await cloud.asked_about(host)
            await until(cloud.off, "it is off after all", lambda off: host in off)
            await cloud.answer(asked, "off")
        case "fence hangs":
            asked = await cloud.asked_about(host)
            cloud.note_how(host, "well")
            await cloud.answer(asked, "again")
        case "fence fails":
            asked = await cloud.asked_about(host)
            assert "no answer" in asked.text
            cloud.silence(host, on=False)
            await until(
                cloud.questions, "nobody is asked about what is back", lambda found: asked not in found
            )
        case "fence lies":
            await until(
                cloud.began, "the fence runs", lambda names: names[began:].count(host), within_s=LONG_S
            )
            cloud.silence(host, on=False)
            resume()
            asked = await cloud.asked_about(host)
            assert "was heard since" in asked.text
            await cloud.answer(asked, "leave")
        case _:
            pass
    if fate in ("fence fails", "fence lies"):
        assert {each.id for each in await cloud.guests_of(host)} >= {each.id for each in guests}
    else:
        await cloud.until_left(host, guests)
    await cloud.judge()
    return f"{fate}: {len(guests)} guests, {time.time() - at:.1f} s"


async def until_heard(cloud: Losing) -> None:
    """Until all hosts are up that are not lost."""
    await until(
        cloud.here.hosts,
        "all others are up",
        lambda found: all(each.up or each.name in cloud.lost for each in found),
    )


async def someone(cloud: Losing, resumed: asyncio.Event) -> None:
    """A person who says of what is asked about hosts together: those that are still silent are lost. When all links are there again."""
    while True:
        await resumed.wait()
        await until_heard(cloud)
        for each in await cloud.questions():
            if each.host_id is None and resumed.is_set():
                with suppress(AssertionError):
                    # It may not matter any more.
                    await cloud.answer(each, "evacuate")
        await asyncio.sleep(0.5)


async def lose_rack(cloud: Losing, rack: Sequence[str]) -> None:
    """A rack that dies is one question; its answer is for all of its hosts."""
    guests = {host: await cloud.guests_of(host) for host in rack}
    cloud.lost |= {*rack}
    cloud.kill(*rack)
    asked = await cloud.asked_about("domain rack")
    await asyncio.sleep(DOWN_S)
    assert [each.id for each in await cloud.questions()] == [asked.id]
    await cloud.answer(asked, "evacuate")
    for host, some in guests.items():
        await cloud.until_left(host, some)
    await cloud.judge()
    assert await cloud.questions() == ()


async def see_what_is_left(cloud: Losing) -> None:
    """Nothing was fenced that was not lost; nothing is held for what is gone; the books agree."""
    assert {*cloud.off(), *cloud.began()} <= cloud.lost
    states = await cloud.here.instances()
    assert {each.state for each in states} == {"active"}
    assert not {each.host for each in states} & {*cloud.off()}
    assert len(states) == GUESTS

    # The hosts are repaired, and destroy what they still have before they take anything new.
    for host in cloud.off():
        (cloud.folder / "off" / host).unlink()
        (cloud.folder / "silent" / host).unlink(missing_ok=True)
        await cloud.answered(SetHost(host=host, mode="up"), HostSet)
    cloud.lost.clear()
    await until_heard(cloud)
    await cloud.here.until_at_rest(lambda _: SMALL)
    assert await cloud.here.audited() == ()
    await cloud.here.nothing_is_buried()
    hosts = await cloud.here.rows("SELECT body FROM keeper_hosts")
    spans = took(await cloud.granted(), [msgspec.json.decode(body, type=CampaignHost) for (body,) in hosts])
    print(f"from the last heartbeat to the first order: {' '.join(f'{each:.1f}' for each in spans)} s")


async def test_lost_hosts_are_recovered_while_each_two_workers_are_cut_off(tmp_path: Path) -> None:
    chance = random.Random(65)
    pairs = chance.sample([*itertools.combinations(CUT, 2)], PAIRS)
    apart = hosts_apart(len(pairs))
    lone = [name for name, place in apart.items() if place != "rack"]
    rack = [name for name in apart if name not in lone]
    async with losing(tmp_path, apart) as cloud:
        await booted(cloud)
        assert {*apart} <= {each.host for each in await cloud.here.instances()}
        policy = KeepingPolicy(
            scope="cloud", guests="evacuate", fence="power-off", fence_s=FENCE_S_MAX, lost_max=3, level=1
        )
        await cloud.answered(SetPolicy(policy=policy), PoliciesFound)
        resumed = asyncio.Event()
        answering = asyncio.create_task(someone(cloud, resumed))
        for number, (host, pair) in enumerate(zip(lone, pairs, strict=True)):
            fate, stall_s = FATES[number % len(FATES)], STALLS_S[number % 2]

            def resume(pair: Sequence[str] = pair) -> None:
                cloud.links.stall(*pair, on=False)
                resumed.set()

            resumed.clear()
            cloud.links.stall(*pair, on=True)
            resuming = asyncio.get_running_loop().call_later(stall_s, resume)
            seen = await lose(cloud, host, fate, resume)
            print(f"{' and '.join(pair)} cut off for {stall_s:.0f} s; {seen}")
            resuming.cancel()
            resume()
            # Hosts that were silent with their compute are heard again, and nobody is asked about them any more.
            await until_heard(cloud)
            await until(cloud.questions, "nobody is asked", lambda found: not found, within_s=LONG_S)
        answering.cancel()

        await lose_rack(cloud, rack)
        await see_what_is_left(cloud)


def took(granted: Sequence[Movement], hosts: Sequence[CampaignHost]) -> list[float]:
    """How many seconds it took from the last heartbeat of each host until the first of its guests was ordered elsewhere."""
    first: dict[str, Any] = {}
    for each in granted:
        if each.granted_at is not None:
            first[each.host] = min(first.get(each.host, each.granted_at), each.granted_at)
    lost_at = {each.host: each.lost_at for each in hosts if each.lost_at is not None}
    return sorted((first[host] - at).total_seconds() for host, at in lost_at.items() if host in first)
