"""Moves of servers: resize, migrations, evacuation, shelving, and the rebuild, which stays."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.conformance.nova.cloud import (
    FLAVOR_HOLDS,
    LARGE,
    MORTAL,
    NOTHING_FOUND,
    SMALL,
    TASK,
    Cloud,
    Operation,
    audited,
    cell_of,
    held_at,
    host_of,
    is_settled,
    soon,
    state_of,
)
from tests.conformance.nova.stub_services import IMAGE, OTHER_IMAGE


def moved(
    cloud: Cloud,
    server: Mapping[str, Any],
    move: tuple[str, Any],
    end: str,
    also: Callable[[Mapping[str, Any]], str] = lambda _: "",
) -> str:
    """What is seen in the middle of a move and after it. `also` sees more of the server."""
    source = host_of(server)
    cloud.nova.act(server["id"], *move)
    there = cloud.nova.until(server["id"], "VERIFY_RESIZE")
    left = held_at(cloud.held(cloud.migration_of(server["id"])), source, "the source's")
    is_near = cell_of(host_of(there)) == cell_of(source)
    meanwhile = (
        f"{'elsewhere' if host_of(there) != source else 'at home'} in {'its' if is_near else 'another'} cell, "
        f"{state_of(cloud, there)}{also(there)}, the move {left}"
    )
    cloud.nova.act(server["id"], end)
    after = cloud.nova.until(server["id"], "ACTIVE")
    back = host_of(after) == source
    left = held_at(cloud.held(cloud.migration_of(server["id"])), source, "the source's")
    return f"{meanwhile}; {end}: {'back' if back else 'there'}, {state_of(cloud, after)}{also(after)}, the move {left}"


def migrate_to_a_host(cloud: Cloud) -> str:
    id_ = cloud.started("small", host="c1h1")["id"]
    cloud.nova.act(id_, "migrate", {"host": "c1h3"})
    there = cloud.nova.until(id_, "VERIFY_RESIZE")
    cloud.nova.act(id_, "confirmResize")
    return f"{host_of(there)}, {state_of(cloud, cloud.nova.until(id_, 'ACTIVE'))}"


def live_migrate(cloud: Cloud) -> str:
    id_ = cloud.started("small", host="c1h1")["id"]

    def live_migrated(target: str | None) -> str:
        cloud.nova.act(id_, "os-migrateLive", {"host": target, "block_migration": "auto"})
        there = until_seen(
            cloud, id_, lambda found: not found[TASK] and (host_of(found) == "c1h1") is bool(target)
        )
        left = soon(lambda: cloud.held(cloud.migration_of(id_)), {})
        where = host_of(there) if target else cell_of(host_of(there))
        return f"{where}, {state_of(cloud, there)}, the move {left or 'nothing'}"

    return f"{live_migrated(None)}; to a host that is named: {live_migrated('c1h1')}"


def until_seen(cloud: Cloud, server: str, is_so: Callable[[Mapping[str, Any]], bool]) -> Any:
    def seen() -> Any:
        found = cloud.nova.server(server)
        return found if is_so(found) else None

    return cloud.nova.until_true(seen, "it is elsewhere")


def evacuated(
    cloud: Cloud, server: Mapping[str, Any], also: Callable[[Mapping[str, Any]], str] = lambda _: ""
) -> str:
    """The host dies; the instance is built elsewhere in its cell; the host comes back and lets go."""
    stack = cloud.stack
    stack.kill(next(each for each, hosts in stack.hosts.items() if MORTAL in hosts and stack.is_alive(each)))
    cloud.set_service(MORTAL, forced_down=True)
    cloud.nova.act(server["id"], "evacuate", {})

    def beside() -> dict[str, str]:
        held = cloud.held(server["id"])
        return {name: held[name] for name in held if name.partition(":")[0] == MORTAL}

    there = until_seen(
        cloud,
        server["id"],
        lambda found: is_settled(found) and (host_of(found) != MORTAL or found["status"] == "ERROR"),
    )
    left = held_at(beside(), MORTAL, "the source's")
    meanwhile = f"{cell_of(host_of(there))}, {there['status']}{also(there)}, and {left}"
    stack.start_computes("cell1", (MORTAL,))
    cloud.set_service(MORTAL, forced_down=False)
    soon(beside, {})
    cloud.nova.until_true(lambda: cloud.nova.service_of(MORTAL)["state"] == "up", f"{MORTAL} is up")
    after = cloud.nova.server(server["id"])
    return f"{meanwhile}; the host came back: {state_of(cloud, after)}{also(after)}"


def shelve(cloud: Cloud) -> str:
    id_ = cloud.started("small")["id"]
    shelved = _shelved(cloud, id_)
    cloud.nova.act(id_, "unshelve")
    again = cloud.nova.until(id_, "ACTIVE")
    seen = f"{state_of(cloud, shelved)}; unshelved: {state_of(cloud, again)}"
    _shelved(cloud, id_)
    other = "c1h2" if cell_of(host_of(again)) == "cell1" else "c2h1"
    cloud.nova.act(id_, "unshelve", {"host": other})
    named = cloud.nova.until(id_, "ACTIVE")
    where = "there" if host_of(named) == other else host_of(named)
    return f"{seen}; to a host that is named: {where}, {state_of(cloud, named)}"


def _shelved(cloud: Cloud, server: str) -> Any:
    cloud.nova.act(server, "shelve")
    return cloud.nova.until(server, "SHELVED_OFFLOADED")


def rebuild(cloud: Cloud) -> str:
    server = cloud.started("small")
    seen = []
    for image in (IMAGE, OTHER_IMAGE):
        cloud.nova.act(server["id"], "rebuild", {"imageRef": image})
        after = cloud.nova.until(server["id"], "ACTIVE")
        home = "at home" if host_of(after) == host_of(server) else "elsewhere"
        has = "that" if after["image"]["id"] == image else "another"
        seen.append(f"{home}, {has} image, {state_of(cloud, after)}")
    return "; another image: ".join(seen)


def audits(cloud: Cloud) -> str:
    """With servers of all kinds alive: one active, one resized, one shelved."""
    _, resized, shelved = (cloud.started("small")["id"] for _ in range(3))
    cloud.nova.act(resized, "resize", {"flavorRef": "large"})
    cloud.nova.until(resized, "VERIFY_RESIZE")
    _shelved(cloud, shelved)
    return audited(cloud)


OPERATIONS = (
    Operation(
        "resize, confirm",
        f"elsewhere in its cell, VERIFY_RESIZE, {LARGE}, the move {FLAVOR_HOLDS} on the source's host; confirmResize: there, ACTIVE, {LARGE}, the move nothing",
        lambda cloud: moved(
            cloud, cloud.started("small"), ("resize", {"flavorRef": "large"}), "confirmResize"
        ),
    ),
    Operation(
        "resize, revert",
        f"elsewhere in its cell, VERIFY_RESIZE, {LARGE}, the move {FLAVOR_HOLDS} on the source's host; revertResize: back, ACTIVE, {SMALL}, the move nothing",
        lambda cloud: moved(
            cloud, cloud.started("small"), ("resize", {"flavorRef": "large"}), "revertResize"
        ),
    ),
    Operation(
        "migrate, revert",
        f"elsewhere in its cell, VERIFY_RESIZE, {SMALL}, the move {FLAVOR_HOLDS} on the source's host; revertResize: back, ACTIVE, {SMALL}, the move nothing",
        lambda cloud: moved(cloud, cloud.started("small"), ("migrate", None), "revertResize"),
    ),
    Operation("migrate to a host", f"c1h3, ACTIVE, {SMALL}", migrate_to_a_host),
    Operation(
        "live migrate",
        f"cell1, ACTIVE, {SMALL}, the move nothing; to a host that is named: c1h1, ACTIVE, {SMALL}, the move nothing",
        live_migrate,
    ),
    Operation(
        "evacuate",
        f"cell1, SHUTOFF, and {FLAVOR_HOLDS} on the source's host; the host came back: SHUTOFF, {SMALL}",
        lambda cloud: evacuated(cloud, cloud.started("small", host=MORTAL)),
    ),
    Operation(
        "shelve, unshelve",
        f"SHELVED_OFFLOADED, holds nothing; unshelved: ACTIVE, {SMALL}; to a host that is named: there, ACTIVE, {SMALL}",
        shelve,
    ),
    Operation(
        "rebuild",
        f"at home, that image, ACTIVE, {SMALL}; another image: at home, that image, ACTIVE, {SMALL}",
        rebuild,
    ),
    Operation(
        "nova-manage placement audit, heal_allocations",
        NOTHING_FOUND,
        audits,
    ),
)
