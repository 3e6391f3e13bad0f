"""What keeps a host back from being handed over: it is not fenced, something is under way, or its rows contradict each other."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from moor.importing_nova.core.records import INSTANCE, MIGRATION, NovaHost, NovaInstance

# Nova takes a service for down after this time without a word.
SERVICE_DOWN = timedelta(seconds=60)
# By Nova's state of an instance: what it is here.
STATES = {"active": "active", "stopped": "stopped", "shelved": "shelved", "error": "broken"}
# Migrations in these states are over.
ENDED = frozenset(("accepted", "cancelled", "completed", "confirmed", "done", "error", "failed", "reverted"))
_WHAT_TO_DO = {
    "paused": "unpause it",
    "suspended": "resume it",
    "rescued": "unrescue it",
    "resized": "confirm or revert its resize",
    "soft-delete": "restore it, or delete it for good",
    "building": "wait until it is built",
    "initialized": "wait until it is built",
}


def why_not_fenced(host: NovaHost, now: datetime) -> list[str]:
    """Why Nova may still build on the host, or change what it has."""
    service = host.service
    if service is None:
        return []
    if not service.disabled:
        return [f"enabled in Nova: `openstack compute service set --disable {host.name} nova-compute`"]
    seen_at = service.seen_at
    if service.forced_down or seen_at is None or now - seen_at > SERVICE_DOWN:
        return []
    seconds = max(0, round((now - seen_at).total_seconds()))
    return [f"nova-compute still runs there (heard {seconds} s ago): stop it, and wait for a minute"]


def what_is_under_way(host: NovaHost) -> list[str]:
    """What Nova has begun, and must end first."""
    found = [
        f"instance {each.id} is {each.state}, and Nova is {each.task}" for each in host.instances if each.task
    ]
    found += [
        f"instance {each.id} is {each.state}: {_WHAT_TO_DO[each.state]} in Nova"
        for each in host.instances
        if not each.task and each.state in _WHAT_TO_DO
    ]
    found += [
        f"migration {each.id} ({each.kind}) of instance {each.instance} is {each.status}"
        for each in host.migrations
        if each.status not in ENDED
    ]
    found += [f"instance {each} is being built there" for each in host.builds]
    return found


def contradictions_of(host: NovaHost) -> list[str]:
    """What cannot be true, or has no meaning here, in the rows of this host."""
    return [*_of_nodes(host), *_of_instances(host), *_of_allocations(host)]


def _of_nodes(host: NovaHost) -> Iterator[str]:
    if host.service is None:
        yield f"host {host.name} has no nova-compute in `services`"
    if not host.nodes:
        yield f"host {host.name} has no compute node"
    elif len(host.nodes) > 1:
        names = ", ".join(node.name for node in host.nodes)
        yield f"host {host.name} has {len(host.nodes)} compute nodes ({names}), and one is known here"


def _of_instances(host: NovaHost) -> Iterator[str]:
    for each in host.instances:
        if each.state not in STATES and each.state not in _WHAT_TO_DO:
            yield f"instance {each.id} is {each.state!r}, known are {', '.join(STATES)}"


def _of_allocations(host: NovaHost) -> Iterator[str]:
    if host.allocations is None:
        return
    roots = {node.uuid for node in host.nodes}
    known = {each.id: each for each in host.instances}
    for consumer, held in host.held.items():
        if consumer in host.builds:
            continue
        if consumer not in known:
            yield _leftover(host, consumer, held[0].type)
            continue
        abroad = sorted(
            {each.provider_name for each in held if each.root not in roots and _is_host(each.resource)}
        )
        if abroad:
            yield f"instance {consumer} also holds something of {', '.join(abroad)}: it is on one host only"
    for each in host.instances:
        if _must_hold(each) and each.id not in host.held:
            yield (
                f"instance {each.id} holds nothing in Nova's placement: "
                f"`nova-manage placement heal_allocations --instance {each.id}`"
            )


def _is_host(resource: str) -> bool:
    """Disk, addresses and the like may come from a sharing provider."""
    return resource in ("VCPU", "PCPU", "MEMORY_MB")


def _must_hold(instance: NovaInstance) -> bool:
    return instance.state in STATES


def _leftover(host: NovaHost, consumer: str, type_: str) -> str:
    if (other := host.elsewhere.get(consumer)) is not None:
        return f"instance {consumer} holds something of host {host.name}, and is on {other}"
    what = "migration" if type_ == MIGRATION else "instance" if type_ == INSTANCE else type_
    return (
        f"consumer {consumer} ({what}) holds something of host {host.name}, and Nova has no such {what} there: "
        f"`nova-manage placement audit --delete`"
    )
