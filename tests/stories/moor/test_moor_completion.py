"""The shell completes the names of what exists, and stays silent when no bus answers."""

import tempfile
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.stories.moor.moor_process import Result, moor_anew, up

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def home() -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory(prefix="moor-") as home:
        async with up(home, "--cells", "harbour,quay", "--hosts", "2", "--nodes", "1") as cloud:
            await cloud.json("group", "create", "pair", "--policy", "affinity")
            await cloud.json("aggregate", "create", "rack-1")
            for name, project in (("web", ""), ("wiki", "shop"), ("old", "")):
                await cloud.json("boot", "--vcpus", "1", "--name", name, "--project", project)
            await cloud.json("delete", "old", "--wait")
            yield home


async def completed(words: str, home: str) -> Result:
    """What bash gets when a person presses the tab key behind these words."""
    typed = {"COMP_WORDS": f"moor {words}", "COMP_CWORD": str(words.count(" ") + 1)}
    return await moor_anew(_MOOR_COMPLETE="bash_complete", XDG_STATE_HOME=home, **typed)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("show w", {"web", "wiki"}),
        ("delete --project shop ", {"wiki"}),
        ("resize x", set()),
        ("show o", set()),
        ("history we", {"web"}),
        ("list --cell ", {"harbour", "quay"}),
        ("list --host quay", {"quay-host-00001", "quay-host-00002"}),
        ("list --state off", {"offloaded"}),
        ("cell show h", {"harbour"}),
        ("host show harbour-host-00002", {"harbour-host-00002"}),
        ("group show ", {"pair"}),
        ("boot --group ", {"pair"}),
        ("boot --aggregate r", {"rack-1"}),
        ("boot --flavor m", {"metal"}),
        ("boot --same-host web", {"web"}),
        ("migrate web --to harbour", {"harbour-host-00001", "harbour-host-00002"}),
        ("provider show quay", {"quay-host-00001", "quay-host-00002"}),
        ("list -o ", {"table", "wide", "json", "yaml", "name"}),
    ],
)
async def test_the_shell_offers_what_exists(home: str, words: str, offered: set[str]) -> None:
    ended = await completed(words, home)

    # Each line is `plain,WORD`.
    assert ({line.partition(",")[2] for line in ended.out.split()}, ended.err, ended.code) == (
        offered,
        "",
        0,
    )
