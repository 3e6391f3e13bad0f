"""A person moves instances, drains a host, and evacuates one that is lost, by command."""

from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from laboratory.computes.hosts import HostSize
from tests.stories.moor.moor_process import moor, moor_json, started
from tests.waiting import until

pytestmark = pytest.mark.asyncio

FIRST, SECOND, THIRD = (f"harbour-host-0000{number}" for number in (1, 2, 3))


async def booted(count: int, host: str, **environment: str) -> list[str]:
    boot = ("boot", "--vcpus", "1", "--ram", "64", "--disk", "1", "--host", host, "--count", str(count))
    found: list[dict[str, Any]] = (await moor_json(*boot, **environment))["instances"]
    assert {each["host"] for each in found} == {host}
    return [each["id"] for each in found]


async def test_a_person_moves_an_instance_and_sees_how_each_move_ended(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with started("up", "--cells", "harbour", "--hosts", "2", **environment) as up:
        await up.until_printed("ready")
        (id_,) = await booted(1, FIRST, **environment)

        there = await moor_json("migrate", id_, **environment)
        assert (there["state"], there["host"]) == ("moved", SECOND)
        going = await moor_json("migration", "list", "--host", SECOND, **environment)
        assert [(each["instance"], each["what"], each["outcome"]) for each in going] == [(id_, "migrate", "")]
        back = await moor_json("migration", "revert", id_, **environment)
        assert (back["state"], back["host"], back["move"]["outcome"]) == ("active", FIRST, "reverted")
        late = await moor("migration", "confirm", id_, **environment)
        assert (late.code, "rejected: how is 'confirm': the move is reverted" in late.err) == (1, True)

        (before,) = await moor_json("show", id_, **environment)
        assert before["size"] == {"flavor": "", "amounts": {"VCPU": 1, "MEMORY_MB": 64, "DISK_GB": 1}}
        larger = ("resize", id_, "--vcpus", "2", "--to", FIRST)
        assert (await moor_json(*larger, **environment))["host"] == FIRST
        assert (await moor_json("migration", "confirm", id_, **environment))["move"]["outcome"] == "confirmed"
        (listed,) = await moor_json("list", **environment)
        assert listed["size"]["amounts"] == {"VCPU": 2, "MEMORY_MB": 64, "DISK_GB": 1}
        assert (
            listed["accepted_at"] <= listed["placed_at"] <= listed["move_placed_at"] <= listed["changed_at"]
        )
        wide = (await moor("list", "-o", "wide", **environment)).out
        shown = (await moor("show", id_, **environment)).out
        assert "2 VCPU, 64 MEMORY_MB, 1 DISK_GB" in wide
        assert "2 VCPU, 64 MEMORY_MB, 1 DISK_GB" in shown
        assert all(word in shown for word in ("accepted", "placed", "last moved", "since"))
        (holder,) = await moor_json("provider", "holders", FIRST, **environment)
        held = {each["resource"]: each["amount"] for each in holder["held"]}
        assert held == {"VCPU": 2, "MEMORY_MB": 64, "DISK_GB": 1}
        live = await moor_json("live-migrate", id_, **environment)
        assert (live["state"], live["host"]) == ("active", SECOND)
        rebuilt = await moor_json("rebuild", id_, "--image", "http://images/arch", **environment)
        assert (rebuilt["state"], rebuilt["host"]) == ("active", SECOND)
        assert (await moor_json("shelve", id_, **environment))["state"] == "shelved"
        unasked = await moor("rebuild", id_, "--image", "http://images/arch", **environment)
        assert (unasked.code, "it is shelved: only an active instance can be rebuilt" in unasked.err) == (
            1,
            True,
        )
        refused = await moor("migrate", id_, **environment)
        assert (refused.code, "it is shelved: to migrate, it must be active" in refused.err) == (1, True)
        assert (await moor_json("unshelve", id_, **environment))["state"] == "active"
        away = await moor_json("shelve", id_, "--offload", **environment)
        assert (away["state"], away["host"], away["keeps_share"]) == ("offloaded", "", False)
        named = await moor_json("unshelve", id_, "--to", FIRST, **environment)
        assert (named["state"], named["host"]) == ("active", FIRST)

        history = await moor_json("history", id_, **environment)
        assert [(each["what"], each["outcome"]) for each in history] == [
            ("boot", "active"),
            ("migrate", "reverted"),
            ("resize", "confirmed"),
            ("live-migrate", "confirmed"),
            ("rebuild", "done"),
            ("shelve", "done"),
            ("unshelve", "done"),
            ("offload", "done"),
            ("unshelve", "done"),
        ]
        sizes = [each["size"] and each["size"]["amounts"]["VCPU"] for each in history]
        assert sizes == [1, None, 2, *[None] * 6]
        assert "reverted" in (await moor("migration", "show", id_, **environment)).out
        assert "no moves" in (await moor("migration", "list", **environment)).out
        audited = await moor("audit", "--settle", "0", **environment)
        assert (audited.code, "no faults" in audited.out) == (0, True)


async def test_a_person_has_moves_wait_for_room_and_sees_why(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    whole = ("boot", "--vcpus", "1", "--ram", str(HostSize().ram_mb * 6 // 10), "--disk", "1", "--host")

    async def whole_on(host: str) -> str:
        (state,) = (await moor_json(*whole, host, **environment))["instances"]
        assert state["state"] == "active", state
        return str(state["id"])

    async with started("up", "--cells", "harbour", "--hosts", "2", **environment) as up:
        await up.until_printed("ready")
        saved = await whole_on(FIRST)
        await moor_json("shelve", saved, "--offload", **environment)
        full, lost = await whole_on(FIRST), await whole_on(SECOND)

        unwise = await moor("unshelve", saved, "--priority", "5", **environment)
        assert (unwise.code, "nothing waits" in unwise.err) == (2, True)
        refused = await moor("unshelve", saved, **environment)
        assert (refused.code, "no valid host" in refused.err) == (1, True)
        order = ("unshelve", saved, "--wait-for-room", "600", "--priority", "5")
        told = await moor_json(*order, "--no-wait", **environment)
        assert (told["state"], told["waiting"]["priority"]) == ("offloaded", 5)
        printed = " ".join((await moor("show", saved, **environment)).out.split())
        assert "for room to unshelve, since " in printed
        assert "with priority 5: no host among 2" in printed
        assert "unshelve: waits for room" in printed
        assert "waits for room to unshelve" in (await moor("list", **environment)).out
        (going,) = await moor_json("migration", "list", **environment)
        assert (going["outcome"], going["failure"].partition(" until ")[0]) == ("waiting", "waits for room")
        explained = " ".join((await moor("explain", saved, **environment)).out.split())
        assert "waits for room to unshelve" in explained

        # Its evacuation waits by itself, goes before the other, and is still done when the command has ended.
        await moor_json("host", "set", SECOND, "down", **environment)
        ordered = await moor("evacuate", SECOND, "--yes", "--timeout", "3", **environment)
        assert ordered.code == 1
        assert "its move waits for room until" in " ".join(ordered.out.split())
        not_again = await moor("evacuate", SECOND, "--yes", "--wait-for-room", "0", **environment)
        assert "abort that first" in " ".join(not_again.out.split())
        await moor_json("delete", full, "--wait", **environment)
        await until(
            lambda: shown(lost, **environment),
            f"it is active on {FIRST}",
            lambda state: (state["host"], state["state"]) == (FIRST, "active"),
        )
        assert (await shown(saved, **environment))["state"] == "offloaded"

        aborted = await moor_json("migration", "abort", saved, **environment)
        assert (aborted["state"], aborted["move"]["outcome"], aborted["waiting"]) == (
            "offloaded",
            "aborted",
            None,
        )
        history = await moor_json("history", saved, **environment)
        assert [(each["what"], each["outcome"]) for each in history] == [
            ("boot", "active"),
            ("offload", "done"),
            ("unshelve", "aborted"),
        ]
        async with started("unshelve", saved, "--wait-for-room", "600", **environment) as waiting:
            await until(lambda: shown(saved, **environment), "it waits", itemgetter("waiting"))
            await moor_json("delete", lost, "--wait", **environment)
            done = await waiting.ended()
        assert (done.code, FIRST in done.out) == (0, True)


async def shown(instance: str, **environment: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = await moor_json("show", instance, **environment)
    (state,) = found
    return state
