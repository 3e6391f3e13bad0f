"""`moor` as a new user runs it: in narrow terminals and pipes, with wrong words, without workers, and where it cannot
write.
"""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from bus.addresses import broker_at
from tests.contracts.memory_under_test import UnixUnderTest
from tests.stories.moor.moor_process import Result, moor, moor_json, started
from tests.waiting import until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cloud(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The bus of a `moor up`."""
    data = tmp_path_factory.mktemp("up")
    async with started("up", "--data", str(data), "--hosts", "2", "--listen", "127.0.0.1:0") as process:
        await process.until_printed("ready")
        yield f"unix://{data}/bus.sock"
        process.send_signal(signal.SIGTERM)
        await process.ended()


@pytest_asyncio.fixture
async def silent() -> AsyncIterator[str]:
    """A bus on which everything is declared and no worker runs."""
    under_test = await UnixUnderTest.start()
    assert (await moor("broker", "declare", "--cells", "c1", "--bus", under_test.url())).code == 0
    yield under_test.url()
    await under_test.close()


def request_of(ran: Result) -> str:
    (found,) = re.findall(r"^request (\S+)$", ran.err, re.MULTILINE)
    return str(UUID(found))


@pytest.mark.asyncio(loop_scope="module")
async def test_a_decision_is_explained_after_it_was_made(cloud: str) -> None:
    booted = await moor_json("boot", "--vcpus", "1", "--bus", cloud)
    failed = await moor("boot", "--vcpus", "500", "--bus", cloud)
    (instance,) = booted["instances"]

    for id_ in (booted["request_id"], instance["id"]):
        (explained,) = (await moor_json("explain", id_, "--bus", cloud))["explanations"]
        assert (explained["chosen"], explained["hosts"] >= explained["qualified"] > 0) == (
            instance["host"],
            True,
        )
    refused = await moor("explain", request_of(failed), "--now", "--bus", cloud, COLUMNS="200")
    assert "VCPU asked 500" in refused.out.partition("now:")[0]
    assert "0 more fit" in refused.out.partition("now:")[2]
    codes = [(await moor("plan", "--vcpus", size, "--bus", cloud)).code for size in ("1", "500")]
    assert codes == [0, 1]
    drained = await moor_json("plan", "--drain", instance["host"], "--bus", cloud)
    assert (drained["fit"], {each["to"] for each in drained["instances"]} & {instance["host"]}) == (
        *(len(drained["instances"]), set()),
    )
    assert instance["id"] in {each["id"] for each in drained["instances"]}
    unknown = await moor("explain", str(uuid4()), "--bus", cloud)
    assert (unknown.code, "there is no instance and no request" in unknown.err) == (1, True)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("list", "--state", "runing"), "'runing' is none of accepted, waiting, placed"),
        (("list", "--cell", "harbor"), "there is no cell 'harbor', so nothing was done; near it: harbour"),
        (("host", "list", "--cell", "harbor"), "there is no cell 'harbor'"),
        (("provider", "list", "--cell", "nowhere"), "there is no cell 'nowhere'"),
        (
            ("provider", "list", "--trait", "HW_CPU_X86_AVX3"),
            "there is no provider with trait 'HW_CPU_X86_AVX3', so nothing was done; near it: HW_CPU_X86_AVX2",
        ),
    ],
    ids=" ".join,
)
async def test_a_misspelt_filter_is_reported(cloud: str, words: tuple[str, ...], said: str) -> None:
    ran = await moor(*words, "--bus", cloud, COLUMNS="200")

    assert ran.code
    assert said in ran.err


# A host of `moor up`, as an answer to a name that is like its own.
NEAR_HOST = "near it: harbour-host-00001"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_misspelt_zone_trait_host_or_cell_is_answered_with_those_near_it(cloud: str) -> None:
    for words in (
        "aggregate create north availability_zone=north",
        "aggregate add north harbour-host-00001",
        "group create trio --policy affinity",
        "boot --vcpus 1 --name web",
    ):
        assert (await moor(*words.split(), "--bus", cloud)).code == 0
    table = {
        "boot --vcpus 1 --az nort": "no host is in zone nort; near it: north",
        "plan --vcpus 1 --az nort": "no host is in zone nort; near it: north",
        "boot --vcpus 1 --trait HW_CPU_X86_AVX512F": "no host has HW_CPU_X86_AVX512F; near it: HW_CPU_X86_AVX2",
        "boot --vcpus 1 --trait HW_CPU_X86_AVX3": "near it: HW_CPU_X86_AVX, HW_CPU_X86_AVX2",
        "boot --vcpus 1 --extra-spec trait1:HW_CPU_X86_AVX512F=required --extra-spec resources1:VCPU=1": "no host has HW_CPU_X86_AVX512F",
        "boot --vcpus 1 --host harbour-host-0001": NEAR_HOST,
        "plan --vcpus 1 --host HARBOUR-HOST-0001": NEAR_HOST,
        "plan --drain harbour-host-0001": NEAR_HOST,
        "migrate web --to harbour-host-0001 --no-wait": NEAR_HOST,
        "live-migrate web --to harbour-host-0001 --no-wait": NEAR_HOST,
        "resize web --vcpus 2 --to harbour-host-0001 --no-wait": NEAR_HOST,
        "evacuate harbour-host-0001 --yes": NEAR_HOST,
        "host set harbour-host-0001 draining": NEAR_HOST,
        "host show harbour-host-0001": NEAR_HOST,
        "host delete harbour-host-0001": NEAR_HOST,
        "host drain harbour-host-0001": NEAR_HOST,
        "host list --having HW_CPU_X86_AVX3": "near it: HW_CPU_X86_AVX2",
        "list --host harbour-host-0001": NEAR_HOST,
        "migration list --host harbour-host-0001": NEAR_HOST,
        "audit --host harbour-host-0001": NEAR_HOST,
        "aggregate add north harbour-host-0001": NEAR_HOST,
        "aggregate remove north harbour-host-0001": NEAR_HOST,
        "aggregate show nort": "near it: north",
        "boot --vcpus 1 --aggregate nort": "near it: north",
        "boot --vcpus 1 --group tri0": "near it: trio",
        "group show tri0": "near it: trio",
        "provider show harbour-host-0001": NEAR_HOST,
        "candidates VCPU=1 HW_CPU_X86_AVX3": "near it: HW_CPU_X86_AVX",
        "cell show harbor": "near it: harbour",
        "audit --cell harbor": "near it: harbour",
    }
    at_once = asyncio.Semaphore(3)

    async def run(words: str) -> tuple[int, str]:
        async with at_once:
            ran = await moor(*words.split(), "--bus", cloud, COLUMNS="300")
        return ran.code, ran.out + ran.err

    ended = await asyncio.gather(*map(run, table))
    silent = {
        words: said
        for (words, expected), (code, said) in zip(table.items(), ended, strict=True)
        if code == 0 or expected not in said
    }
    assert silent == {}


async def test_without_workers_a_boot_shows_its_id_and_how_to_go_on(silent: str) -> None:
    ran = await moor("boot", "--vcpus", "1", "--timeout", "1", "--bus", silent)

    request = request_of(ran)
    assert ran.code == 3
    assert "no scheduler has taken the request within 1 s. It stays on the bus" in ran.err
    assert f"`moor show {request}` shows its state, `moor delete {request}` deletes it" in ran.err


async def test_without_workers_json_output_still_has_the_id(silent: str) -> None:
    request = str(uuid4())
    ran = await moor(
        "boot", "--vcpus", "1", "--timeout", "1", "--bus", silent, "-o", "json", "--request-id", request
    )

    assert ran.code == 3
    assert json.loads(ran.out) == {"request_id": request, "instances": []}


async def test_ctrl_c_says_that_the_request_stays(silent: str) -> None:
    async with started("boot", "--vcpus", "1", "--bus", silent) as process:
        line = await process.until_printed_to_stderr("request ")
        connection = await broker_at(silent).connect()
        await until(lambda: connection.depth("scheduler.requests"), "the request is queued")
        await connection.close()
        process.send_signal(signal.SIGINT)
        ran = await process.ended()

    assert ran.code == 130
    assert "the request stays, and will be built: " in ran.err
    assert line.split()[1] in ran.err


@pytest.mark.asyncio(loop_scope="module")
async def test_a_name_cannot_command_the_terminal(cloud: str) -> None:
    booted = await moor("boot", "--vcpus", "1", "--name", "\x1b[2Jred\x9b", "--bus", cloud)
    assert booted.code == 0

    said = await moor("show", request_of(booted), "--bus", cloud)
    (told,) = await moor_json("show", request_of(booted), "--bus", cloud)

    assert r"\u001b[2Jred\u009b" in said.out
    assert told["name"] == "\x1b[2Jred\x9b"
    assert not {"\x1b", "\x9b"} & {*booted.out, *said.out}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("migrate", str(UUID(int=1)), "--project", "A B"), 2, "project is 'A B', and cannot be sent"),
        (("group", "create", "n" * 300, "--policy", "affinity"), 2, "name is 'nnn"),
        (("host", "set", "h", "down", "--reason", "n" * 300), 2, "reason is 'nnn"),
        (("boot", "--vcpus", "1", "--name", "n" * 300), 2, "name is 'nnn"),
        (
            ("boot", "--vcpus", "1", "--same-host", "x"),
            1,
            "there is no instance 'x', so nothing was done",
        ),
        (("plan", "--drain", "h", "--vcpus", "2"), 2, "--vcpus is 2, and cannot be combined with --drain"),
        (("aggregate", "create", "a", "k=1", "k=2"), 2, "metadata gives k twice, as '1' and as '2'"),
        (("migration", "list", "--host", "h"), 1, "there is no host 'h'"),
        (("list", "--host", "h"), 1, "there is no host 'h'"),
    ],
    ids=lambda value: " ".join(value[:3])[:40] if isinstance(value, tuple) else "",
)
async def test_a_wrong_option_is_named_with_its_value_before_anything_is_sent(
    cloud: str, words: tuple[str, ...], code: int, reason: str
) -> None:
    said = await moor(*words, "--bus", cloud, COLUMNS="400")

    assert (said.code, reason in said.err, said.out) == (code, True, "")
