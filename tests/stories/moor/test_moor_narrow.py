"""In a terminal of 80 columns every list has all its columns and whole values, and its short ids are accepted."""

import json
import re
import tempfile
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.stories.moor.moor_process import Result, moor, moor_json, started

pytestmark = pytest.mark.asyncio(loop_scope="module")

WIDTH = 80
UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
# The beginning of an id, or a whole one.
SHORT = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}[-0-9a-f]*")
# Long names, as they are in a cloud.
HOSTS = ("--cells", "harbour-of-the-north", "--hosts", "3", "--nodes", "3")

# The arguments of each command that lists things.
LISTS = {
    "list": (),
    "migration list": ("--all",),
    "group list": (),
    "flavor list": (),
    "image list": (),
    "device-profile list": (),
    "quota list": (),
    "host list": (),
    "host capabilities": (),
    "cell list": (),
    "aggregate list": (),
    "node list": (),
    "provider list": (),
    "trait list": ("--all",),
    "class list": ("--all",),
    "history": ("web",),
    "provider holders": ("{host}",),
    "provider inventory": ("{host}",),
    "plan": ("--hosts", "--vcpus", "1"),
    "candidates": ("VCPU=1",),
    "ring": (),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cloud() -> AsyncIterator[dict[str, str]]:
    """A cloud with something of everything. Yields the environment of its commands."""
    with tempfile.TemporaryDirectory(prefix="moor-") as home:
        environment = {"XDG_STATE_HOME": home}
        async with started("up", *HOSTS, **environment) as up:
            await up.until_printed("ready")
            await moor_json(
                "group", "create", "a-group-with-a-long-name", "--policy", "anti-affinity", **environment
            )
            pairs = ("availability_zone=north", "rack=17", "floor=second")
            await moor_json("aggregate", "create", "an-aggregate-with-a-long-name", *pairs, **environment)
            specs = ("--extra-spec", "hw:cpu_policy=shared", "--trait", "HW_CPU_X86_AVX2")
            await moor_json(
                "flavor", "create", "a-flavor-with-a-long-name", "--vcpus", "2", *specs, **environment
            )
            source = ("--source", "http://images/debian-13", "--property", "os_type=linux")
            await moor_json("image", "create", "an-image-with-a-long-name", *source, **environment)
            await moor_json(
                "quota", "set", "a-project-of-somebody", "instances=50", "MEMORY_MB=6000000", **environment
            )
            size = ("--vcpus", "1", "--ram", "64", "--project", "a-project-of-somebody")
            names = (
                "web",
                "a-name-as-people-give-them-to-instances-1",
                "a-name-as-people-give-them-to-instances-2",
            )
            for name in names:
                await moor_json("boot", *size, "--name", name, **environment)
            await moor_json("boot", "--vcpus", "5000", "--name", "too-large", "--no-wait", **environment)
            await moor_json("resize", "web", "--vcpus", "2", "--confirm-after", "0", **environment)
            await moor_json("migrate", names[1], **environment)
            await moor_json("delete", names[2], "--wait", **environment)
            yield environment


async def printed(words: str, arguments: tuple[str, ...], cloud: dict[str, str], **more: str) -> Result:
    (web,) = await moor_json("show", "web", **cloud)
    told = [each.replace("{host}", web["host"]) for each in arguments]
    ran = await moor(*words.split(), *told, **{**cloud, **more})
    assert ran.code == 0, ran.err
    return ran


@pytest.mark.parametrize("words", LISTS)
async def test_at_80_columns_nothing_is_lost_of_a_list(cloud: dict[str, str], words: str) -> None:
    narrow = await printed(words, LISTS[words], cloud, COLUMNS=str(WIDTH))
    wide = await printed(words, LISTS[words], cloud, COLUMNS="1000")

    lines = narrow.out.splitlines()
    assert max(map(len, lines)) <= WIDTH, narrow.out
    headings = wide.out.splitlines()[0].split("  ")
    assert all(each.strip() in narrow.out for each in headings if each.strip()), narrow.out
    whole = {*UUID.findall(wide.out)}
    for short in SHORT.findall(narrow.out):
        assert short in whole or len([each for each in whole if each.startswith(short)]) == 1, short
    assert {
        each for each in whole if any(each.startswith(short) for short in SHORT.findall(narrow.out))
    } == whole
    # Times go on between the two.
    for word in {each for each in SHORT.sub("", wide.out).split() if not each[0].isdigit()}:
        assert word in narrow.out, f"{word} of\n{wide.out} is not in\n{narrow.out}"


async def test_the_short_ids_that_are_shown_are_accepted(cloud: dict[str, str]) -> None:
    listed = json.loads((await printed("list", ("-o", "json"), cloud)).out)
    narrow = await printed("list", (), cloud, COLUMNS=str(WIDTH))

    shown = SHORT.findall(narrow.out)
    assert len(shown) == len(listed)
    assert any(len(each) < 36 for each in shown)
    for short in shown:
        (found,) = await moor_json("show", short, **cloud)
        assert found["id"].startswith(short)
