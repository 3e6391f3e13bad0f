"""Moves of servers: resize, migrations, evacuation, shelving, and the rebuild, which stays."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.conformance.nova.cloud import (
    FLAVOR_HOLDS,
    LARGE,
    MORTAL,
    NOTHING_FOUND,
    SMALL,
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


def _moved(cloud: Cloud, move: tuple[str, Any], end: str) -> str:
    server = cloud.started(cloud.small)
    seen = moved(cloud, server, move, end)
    cloud.delete(server["id"])
    return seen


def resize_and_confirm(cloud: Cloud) -> str:
    return _moved(cloud, ("resize", {"flavorRef": cloud.large}), "confirmResize")


def resize_and_revert(cloud: Cloud) -> str:
    return _moved(cloud, ("resize", {"flavorRef": cloud.large}), "revertResize")


def migrate_and_revert(cloud: Cloud) -> str:
    return _moved(cloud, ("migrate", None), "revertResize")


def migrate_to_a_host(cloud: Cloud) -> str:
    server = cloud.started(cloud.small, host="c1h1")
    cloud.nova.act(server["id"], "migrate", {"host": "c1h3"})
    there = cloud.nova.until(server["id"], "VERIFY_RESIZE")
    cloud.nova.act(server["id"], "confirmResize")
    seen = f"{host_of(there)}, {state_of(cloud, cloud.nova.until(server['id'], 'ACTIVE'))}"
    cloud.delete(server["id"])
    return seen


def live_migrate(cloud: Cloud) -> str:
    server = cloud.started(cloud.small, host="c1h1")
    cloud.nova.act(server["id"], "os-migrateLive", {"host": None, "block_migration": "auto"})

    def moved() -> Any:
        found = cloud.nova.server(server["id"])
        return found if found["OS-EXT-STS:task_state"] is None and host_of(found) != "c1h1" else None

    there = cloud.nova.until_true(moved, "it is elsewhere")
    left = soon(lambda: cloud.held(cloud.migration_of(server["id"])), {})
    seen = f"{cell_of(host_of(there))}, {state_of(cloud, there)}, the move {left or 'nothing'}"
    cloud.nova.act(server["id"], "os-migrateLive", {"host": "c1h1", "block_migration": "auto"})

    def back() -> Any:
        found = cloud.nova.server(server["id"])
        return found if found["OS-EXT-STS:task_state"] is None and host_of(found) == "c1h1" else None

    again = cloud.nova.until_true(back, "it is back")
    soon(lambda: cloud.held(cloud.migration_of(server["id"])), {})
    seen += f"; to a host that is named: {host_of(again)}, {state_of(cloud, again)}"
    cloud.delete(server["id"])
    return seen


def evacuated(
    cloud: Cloud, server: Mapping[str, Any], also: Callable[[Mapping[str, Any]], str] = lambda _: ""
) -> str:
    """The host dies; the instance is built elsewhere in its cell; the host comes back and lets go."""
    stack = cloud.stack
    process = next(each for each, hosts in stack.hosts.items() if MORTAL in hosts and stack.is_alive(each))
    stack.end(process, 9)
    cloud.set_service(MORTAL, forced_down=True)
    cloud.nova.act(server["id"], "evacuate", {})

    def is_elsewhere() -> Any:
        found = cloud.nova.server(server["id"])
        return (
            found if is_settled(found) and (host_of(found) != MORTAL or found["status"] == "ERROR") else None
        )

    def beside() -> dict[str, str]:
        held = cloud.held(server["id"])
        return {name: held[name] for name in held if name.partition(":")[0] == MORTAL}

    there = cloud.nova.until_true(is_elsewhere, "it is elsewhere")
    left = held_at(beside(), MORTAL, "the source's")
    meanwhile = f"{cell_of(host_of(there))}, {there['status']}{also(there)}, and {left}"
    stack.start_computes("cell1", (MORTAL,))
    cloud.set_service(MORTAL, forced_down=False)
    soon(beside, {})
    cloud.nova.until_true(lambda: cloud.nova.service_of(MORTAL)["state"] == "up", f"{MORTAL} is up")
    after = cloud.nova.server(server["id"])
    return f"{meanwhile}; the host came back: {state_of(cloud, after)}{also(after)}"


def evacuate(cloud: Cloud) -> str:
    server = cloud.started(cloud.small, host=MORTAL)
    seen = evacuated(cloud, server)
    cloud.delete(server["id"])
    return seen


def shelve(cloud: Cloud) -> str:
    server = cloud.started(cloud.small)
    cloud.nova.act(server["id"], "shelve")
    shelved = cloud.nova.until(server["id"], "SHELVED_OFFLOADED")
    seen = state_of(cloud, shelved)
    cloud.nova.act(server["id"], "unshelve")
    again = cloud.nova.until(server["id"], "ACTIVE")
    seen += f"; unshelved: {state_of(cloud, again)}"
    cloud.nova.act(server["id"], "shelve")
    cloud.nova.until(server["id"], "SHELVED_OFFLOADED")
    other = "c1h2" if cell_of(host_of(again)) == "cell1" else "c2h1"
    cloud.nova.act(server["id"], "unshelve", {"host": other})
    named = cloud.nova.until(server["id"], "ACTIVE")
    seen += f"; to a host that is named: {'there' if host_of(named) == other else host_of(named)}, {state_of(cloud, named)}"
    cloud.delete(server["id"])
    return seen


def rebuild(cloud: Cloud) -> str:
    server = cloud.started(cloud.small)
    seen = []
    for image in (IMAGE, OTHER_IMAGE):
        cloud.nova.act(server["id"], "rebuild", {"imageRef": image})
        after = cloud.nova.until(server["id"], "ACTIVE")
        home = "at home" if host_of(after) == host_of(server) else "elsewhere"
        seen.append(
            f"{home}, {'that' if after['image']['id'] == image else 'another'} image, {state_of(cloud, after)}"
        )
    cloud.delete(server["id"])
    return "; another image: ".join(seen)


def audits(cloud: Cloud) -> str:
    """With servers of all kinds alive: one active, one resized, one shelved."""
    active, resized, shelved = (cloud.started(cloud.small)["id"] for _ in range(3))
    cloud.nova.act(resized, "resize", {"flavorRef": cloud.large})
    cloud.nova.until(resized, "VERIFY_RESIZE")
    cloud.nova.act(shelved, "shelve")
    cloud.nova.until(shelved, "SHELVED_OFFLOADED")
    seen = audited(cloud)
    cloud.delete(active, resized, shelved)
    return seen


OPERATIONS = (
    Operation(
        "resize, confirm",
        f"elsewhere in its cell, VERIFY_RESIZE, {LARGE}, the move {FLAVOR_HOLDS} on the source's host; confirmResize: there, ACTIVE, {LARGE}, the move nothing",
        resize_and_confirm,
    ),
    Operation(
        "resize, revert",
        f"elsewhere in its cell, VERIFY_RESIZE, {LARGE}, the move {FLAVOR_HOLDS} on the source's host; revertResize: back, ACTIVE, {SMALL}, the move nothing",
        resize_and_revert,
    ),
    Operation(
        "migrate, revert",
        f"elsewhere in its cell, VERIFY_RESIZE, {SMALL}, the move {FLAVOR_HOLDS} on the source's host; revertResize: back, ACTIVE, {SMALL}, the move nothing",
        migrate_and_revert,
    ),
    Operation("migrate to a host", f"c1h3, ACTIVE, {SMALL}", migrate_to_a_host),
    Operation(
        "live migrate",
        f"cell1, ACTIVE, {SMALL}, the move nothing; to a host that is named: c1h1, ACTIVE, {SMALL}",
        live_migrate,
    ),
    Operation(
        "evacuate",
        f"cell1, SHUTOFF, and {FLAVOR_HOLDS} on the source's host; the host came back: SHUTOFF, {SMALL}",
        evacuate,
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
