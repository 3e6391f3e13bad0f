"""`moor host place`, and places in lists, boots and groups. If a file has one wrong line, nothing is written, and the line is named."""

from collections import Counter
from pathlib import Path

from tests.stories.moor.moor_process import Up, up

HOST = "harbour-host-0000{}"


async def places(cloud: Up) -> Counter[str]:
    return Counter(each["place"] for each in await cloud.json("host", "list"))


async def test_hosts_are_placed_by_hand_and_by_file_and_groups_and_boots_go_by_it(home: Path) -> None:
    plan = home / "hosts.csv"
    racks = ("--cells", "harbour", "--hosts", "8", "--host-place", "dc1/hall1/row{4}/rack{2}")
    async with up(home, *racks) as cloud:
        assert await places(cloud) == {
            f"dc1/hall1/row{row}/rack{rack}": 2 for row, rack in ((1, 1), (1, 2), (2, 3), (2, 4))
        }
        await cloud.says(0, "dc1/hall1/row1/rack1", "host", "list", "--place", "dc1/hall1/row1/rack1")
        await cloud.says(0, "no hosts", "host", "list", "--place", "dc1/hall1/row1/rack")
        await cloud.says(0, "max-per", "group", "create", "--help")

        await cloud.says(
            0, ("harbour/harbour-host-00001", "dc1/hall2"), "host", "place", HOST.format(1), "dc1/hall2"
        )
        await cloud.says(0, ("place", "dc1/hall2"), "host", "show", HOST.format(1))
        lines = [f"{HOST.format(number)},dc2/hall1/row1/rack{number}" for number in range(1, 9)]
        for wrong, said in (
            ("unknown-1,dc2", "line 9: host 'unknown-1': no host of this name is known"),
            (f"{HOST.format(2)},dc2", "line 9: host 'harbour-host-00002': hosts[1] names it, too"),
            (
                f"{HOST.format(2)},dc2//x",
                "line 9: host 'harbour-host-00002': place is 'dc2//x': a place is names",
            ),
            (f"{HOST.format(2)},{'/'.join('d' * 300)}", "and this has 599"),
            ("harbour-host-00002", "line 9: it must be HOST,PLACE"),
        ):
            plan.write_text("\n".join((*lines, wrong)), encoding="utf-8")
            ran = await cloud.run("host", "place", "--file", str(plan))
            assert ran.code in (1, 2), ran
            assert said in " ".join((ran.out + ran.err).replace("│", " ").split()), ran
        assert (await places(cloud))["dc1/hall2"] == 1
        plan.write_text("\n".join(("host,place", "# the new hall", *lines, "")), encoding="utf-8")
        await cloud.says(0, "dc2/hall1/row1/rack8", "host", "place", "--file", str(plan))
        assert sorted(await places(cloud)) == [f"dc2/hall1/row1/rack{number}" for number in range(1, 9)]

        back = [HOST.format(number) for number in range(1, 9)]
        await cloud.says(0, "dc1/hall1/row2/rack4", "host", "place", *back, "")
        await cloud.says(0, "", "group", "create", "racks", "--max-per", "rack=1", "--spread", "hall")
        await cloud.says(0, "at most 1", "group", "list")
        built = [await cloud.run("boot", "--vcpus", "1", "--group", "racks") for _ in range(5)]
        assert [each.code for each in built] == [0, 0, 0, 0, 1]
        assert "group rules" in built[-1].out + built[-1].err
        there = await cloud.json("boot", "--vcpus", "1", "--place", "dc1/hall1/row2", "--count", "2")
        assert {each["host"] for each in there["instances"]} <= {
            HOST.format(number) for number in range(5, 9)
        }
        for flags, said in (
            (("--max-per", "rack=0"), "it must be LEVEL=N"),
            (("--max-per", "9=2"), "names the level '9'"),
            (("--spread", "shelf"), "names the level 'shelf': it must be dc, hall, row, rack"),
            ((), "--policy is not given"),
        ):
            await cloud.says(2, said, "group", "create", "wrong", *flags)
        await cloud.says(
            2, "place is 'dc1//x', and cannot be sent", "boot", "--vcpus", "1", "--place", "dc1//x"
        )
