"""`moor replay` as one calls it: a trace against the policies, what is wrong with a trace, and traces of one's own cloud and of a
Nova.
"""

import csv
import gzip
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.nova.rows import CREATED, FlavorRow, NovaRows
from tests.nova.schema import sqlite_databases
from tests.stories.moor.moor_process import moor, moor_says, up
from tools.pages.commands import ROOT

HEADER = "arrival_s,batch,vcpus,memory_gib,lifetime_low_s,lifetime_high_s,ended"
# Four small instances, and one that needs a whole host; when the small ones have ended, another one comes, and a small one.
SMALL = [f"0,0,1,2,{low},{high},1" for low, high in ((50, 150), (100, 100), (90, 110), (0, 200))]
TRACE = "\n".join([HEADER, *SMALL, "10,1,4,8,1000,1000,1", "101,2,4,8,500,,0", "102,3,1,0.5,5,5,1"])
HOSTS = ("--hosts", "2:4:8")


def a_trace(folder: Path, text: str = TRACE, name: str = "trace.csv") -> str:
    file = folder / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(file)


async def test_each_policy_is_told_with_what_it_refused_and_all_of_it_is_drawn(tmp_path: Path) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.svg"
    trace = a_trace(tmp_path, name="trace.csv.gz")

    ran = await moor_says(
        0,
        ("policy refused their vCPU", "fill 1 of 7 1"),
        *("replay", trace, *HOSTS, "--json", str(figures), "--plot", str(picture)),
    )
    said = json.loads(figures.read_bytes())

    by_policy = {each["policy"]: each for each in said["policies"]}
    assert [*by_policy] == ["spread", "fill", "fit"]
    # Two small ones on each host leave no room for the large one; afterwards there is room for all.
    spread, fill = by_policy["spread"], by_policy["fill"]
    assert (spread["refused"], spread["refused_by_vcpus"]) == (1, {"4": 1})
    # The large one lives on while the next one comes, and the last small one has no room.
    assert (fill["refused"], fill["refused_by_vcpus"], fill["refused_vcpus"]) == (1, {"1": 1}, 1)
    assert (fill["peak"], fill["empty_hosts"], fill["instances"], fill["refused_large"]) == (1.0, 0.25, 7, 0)
    assert said["hosts"] == [
        {"count": 2, "vcpus": 4, "memory_mb": 8192, "disk_gb": 0, "traits": []},
    ]
    assert picture.read_text().count("<polyline") == 9
    assert "Traceback" not in ran.err


async def test_a_balance_moves_instances_beside_a_policy(tmp_path: Path) -> None:
    # One of the two on each host ends early. Then one wants a whole host, which has to be emptied before.
    lines = [f"0,0,1,2,{end},{end},1" for end in (50, 1000, 1000, 50)]
    trace = a_trace(tmp_path, "\n".join([HEADER, *lines, "60,1,4,8,100,100,1"]))
    figures = tmp_path / "figures.json"
    flags = ("--policy", "spread", "--balance", "fill", "--balance-every", "5", "--json", str(figures))
    await moor_says(0, "spread, fill", "replay", trace, *HOSTS, *flags)
    without, filled = json.loads(figures.read_bytes())["policies"]
    assert (without["moves"], filled["moves"], filled["moved_most"]) == (0, 1, 1)
    assert (without["refused"], filled["refused"]) == (1, 0)
    await moor_says(
        2, "--balance-moves", "replay", trace, *HOSTS, "--balance", "even", "--balance-moves", "0"
    )


async def test_the_trace_of_the_page_is_played() -> None:
    command, _ = [
        line for line in (ROOT / "docs/replay.md").read_text().splitlines() if "azure2017.csv.gz --" in line
    ]
    await moor_says(0, "of 12,000", *command.split()[1:], "--policy", "fill")


async def test_the_same_seed_gives_the_same_and_settings_make_a_policy_of_their_own(tmp_path: Path) -> None:
    trace = a_trace(tmp_path)
    files = [tmp_path / f"{number}.json" for number in range(2)]
    for file in files:
        await moor_says(
            0,
            "spread cpu_weight_multiplier=-1",
            *("replay", trace, *HOSTS, "--seed", "7", "--json", str(file)),
            *("--policy", "spread", "--policy", "spread  cpu_weight_multiplier=-1 ram_weight_multiplier=-1"),
        )
    first, again = (
        [each["refused_by_vcpus"] for each in json.loads(file.read_bytes())["policies"]] for file in files
    )

    assert first == again
    assert first[0] != first[1]


async def test_hosts_of_several_kinds_traits_disks_and_groups(tmp_path: Path) -> None:
    lines = (
        "0,0,1,1,9,9,1,10,CUSTOM_FAST,",
        "0,0,1,1,9,9,1,10,CUSTOM_FAST,",
        "0,0,1,1,9,9,1,10,!CUSTOM_FAST,web:anti-affinity",
        "0,0,1,1,9,9,1,10,!CUSTOM_FAST,web:anti-affinity",
        # The members before it have ended.
        "10,1,1,1,9,9,1,10,!CUSTOM_FAST,web:anti-affinity",
        "10,1,1,1,9,9,1,999,,",
    )
    trace = a_trace(tmp_path, "\n".join([f"{HEADER},disk_gb,traits,group", *lines]))
    file = tmp_path / "figures.json"

    await moor_says(
        0,
        "fit 3 of 6",
        *("replay", trace, "--hosts", "1:1:8:100:CUSTOM_FAST", "--hosts", "1:8:8:100", "--policy", "fit"),
        *("--json", str(file)),
    )

    (fit,) = json.loads(file.read_bytes())["policies"]
    assert fit["refused"] == 3


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("has no column vcpus", "arrival_s,batch\n"),
        ("has a column 'colour'", f"{HEADER},colour\n"),
        ("has no arrivals", f"{HEADER}\n"),
        ("line 2: vcpus is 'two'", f"{HEADER}\n0,0,two,1,5,5,1"),
        ("line 2: memory_gib is '-1'", f"{HEADER}\n0,0,1,-1,5,5,1"),
        ("line 2: lifetime_high_s is '4': it is less than lifetime_low_s, 5", f"{HEADER}\n0,0,1,1,5,4,1"),
        ("line 2: lifetime_high_s is ''", f"{HEADER}\n0,0,1,1,5,,1"),
        ("line 2: ended is 'yes'", f"{HEADER}\n0,0,1,1,5,5,yes"),
        ("line 3: arrival_s is '0': the line before has 1", f"{HEADER}\n1,0,1,1,5,5,1\n0,0,1,1,5,5,1"),
        ("line 2 has 3 values for 7 columns", f"{HEADER}\n0,0,1"),
        ("line 2: arrival_s is 'nan'", f"{HEADER}\nnan,0,1,1,5,5,1"),
        ("line 2: vcpus is '1e12': it is more than 2147483647", f"{HEADER}\n0,0,1e12,1,5,5,1"),
        ("line 2: group is 'web'", f"{HEADER},group\n0,0,1,1,5,5,1,web"),
        (
            "line 3: group is 'web:affinity': a line before gives it the policy anti-affinity",
            f"{HEADER},group\n0,0,1,1,5,5,1,web:anti-affinity\n0,0,1,1,5,5,1,web:affinity",
        ),
        ("--hosts have no disk", f"{HEADER},disk_gb\n0,0,1,1,5,5,1,10"),
    ],
)
async def test_what_is_wrong_with_a_trace_is_told_with_its_line(tmp_path: Path, said: str, text: str) -> None:
    await moor_says(2, said, "replay", a_trace(tmp_path, text), *HOSTS)


@pytest.mark.parametrize(
    ("said", "flags"),
    [
        ("--hosts is '2:4'", ("--hosts", "2:4")),
        ("--hosts is '0:4:8'", ("--hosts", "0:4:8")),
        ("--hosts are 300,000 together", ("--hosts", "300000:4:8")),
        ("--policy is 'best'", (*HOSTS, "--policy", "best")),
        ("--policy gives 'fit' twice", (*HOSTS, "--policy", "fit", "--policy", "fit")),
        ("cpu_weight_multiplier is 'much'", (*HOSTS, "--policy", "fit cpu_weight_multiplier=much")),
        ("Missing option '--hosts'", ()),
    ],
)
async def test_what_is_wrong_with_a_flag_is_told(tmp_path: Path, said: str, flags: tuple[str, ...]) -> None:
    await moor_says(2, said, "replay", a_trace(tmp_path), *flags)


async def test_a_file_that_is_cut_off_is_no_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv.gz"
    file.write_bytes(gzip.compress(TRACE.encode())[:-20])

    await moor_says(2, "cannot be read as CSV", "replay", str(file), *HOSTS)
    missing = await moor("replay", str(tmp_path / "none.csv"), *HOSTS)
    assert (missing.code, "No such file" in missing.err) == (2, True), missing


def rows_in(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return [*csv.DictReader(lines)]


async def test_an_operator_replays_his_own_cloud(home: Path) -> None:
    trace = home / "own.csv"
    async with up(home, "--cells", "harbour", "--hosts", "2") as cloud:
        size = ("--vcpus", "2", "--ram", "1536", "--disk", "3")
        await cloud.says(0, "web-1", "boot", "--name", "web", *size, "--count", "2")
        await cloud.says(0, "db", "boot", "--name", "db", *size)
        await cloud.says(1, "", "boot", "--name", "huge", "--vcpus", "4000", "--ram", "1024", "--disk", "1")
        await cloud.says(0, "", "delete", "db", "--yes", "--wait")

        await cloud.says(0, ("3 instances are in", "1 are left out"), "history", "export", str(trace))
        await cloud.says(0, "2 of 3", "replay", str(trace), "--hosts", "1:2:4:100", "--policy", "fill")
        # The word that is no verb is an instance.
        assert [each["what"] for each in await cloud.json("history", "db")] == ["boot", "delete"]
        await cloud.says(1, "no instance", "history", "none")
        await cloud.says(2, "FILE", "history", "export", str(home / "none" / "own.csv"))

    first, second, third = rows_in(trace)
    assert (first["arrival_s"], first["ended"], first["lifetime_high_s"]) == ("0.000", "0", "")
    assert [each["batch"] for each in (first, second, third)] == ["0", "0", "1"]
    assert (third["ended"], third["lifetime_low_s"]) == ("1", third["lifetime_high_s"])
    assert {(each["vcpus"], each["memory_gib"], each["disk_gb"]) for each in rows_in(trace)} == {
        ("2", "1.5", "3")
    }


async def test_the_arrivals_of_a_nova_are_a_trace_too(home: Path) -> None:
    addresses, trace = sqlite_databases(home / "nova", ("harbour",)), home / "nova.csv"
    large = FlavorRow(name="m1.large", id=2, vcpus=8, ram_mb=16384, root_gb=40)
    ended: dict[str, Any] = {"deleted": 7, "vm_state": "deleted"}
    with NovaRows(addresses) as nova:
        for flavor in (FlavorRow(), large):
            nova.flavor(flavor)
        nova.host("harbour", "h1")
        nova.instance("harbour", "h1", 0, reservation_id="r-one")
        nova.instance("harbour", "h1", 1, flavor=large, reservation_id="r-one", created_at=CREATED)
        for number, column in enumerate(("terminated_at", "deleted_at"), 2):
            at: dict[str, Any] = {column: CREATED + timedelta(hours=number), "created_at": CREATED}
            nova.instance("harbour", "h1", number, **ended, **at)
        nova.instance("harbour", None, 5, launched_at=None, vm_state="error")
    url = addresses.cells["harbour"]

    await moor_says(
        0,
        ("4 instances are in", "1 are left out"),
        *("nova", "export-history", str(trace), "--cell-db", url),
    )
    await moor_says(
        1, "there is no file", "nova", "export-history", str(trace), "--cell-db", "sqlite:///none"
    )
    await moor_says(0, "spread 1 of 4", "replay", str(trace), "--hosts", "1:8:24:100", "--policy", "spread")

    found = rows_in(trace)
    assert [(each["batch"], each["vcpus"], each["memory_gib"], each["ended"]) for each in found] == [
        ("0", "2", "2", "0"),
        ("0", "8", "16", "0"),
        ("1", "2", "2", "1"),
        ("2", "2", "2", "1"),
    ]
    assert [each["lifetime_high_s"] for each in found] == ["", "", "7200.000", "10800.000"]
