"""`moor node undeploy`: takes instances off bare-metal nodes that Ironic has there and nobody has in the books.

`moor audit` finds them. The command looks into the books itself, and refuses what may belong to somebody. It writes the order on
the daemons' rows; the node's owner undeploys, as after a late request of an abandoned deploy.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ProviderId
from ironic_sync.core.settling import with_stray
from moor.asking import hosts_of, providers_of
from moor.bare_metal.node_command import (
    WAIT_S,
    Names,
    Timeout,
    Wait,
    app,
    found_nodes,
    settings_with_ironic,
    until_none,
)
from moor.bare_metal.nodes import NodeReader, NodeShown, reading_nodes, seen_in_ironic
from moor.bare_metal.nodes_showing import NODES
from moor.books.audit_command import clients, reader_of
from moor.books.instance_rules import own_entry, whereabouts
from moor.books.rules import faults_on_nodes, nodes_of
from moor.books.views import InstanceView, Places, Sight
from moor.options import NOT_IN_TIME, BusUrl, IronicDatabaseUrl, IronicUrl, Output, fail, option_of, run
from moor.settings import GENERAL, Settings
from moor.showing import print_all

PATIENCE_S = 30.0


@app.command()
def undeploy(
    nodes: Names,
    ironic: IronicUrl = "",
    ironic_db: IronicDatabaseUrl = "",
    bus: BusUrl = "",
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: what is on the disks is lost.")] = False,
    settle: Annotated[int, option_of(GENERAL, "audit_settle", metavar="SECONDS")] = 60,
    wait: Wait = True,
    timeout: Timeout = WAIT_S,
    _output: Output = None,
) -> None:
    """Take instances off nodes that Ironic has there and nobody has in the books: what `moor audit` calls stray on node.

    An instance that anybody has is left alone: `moor delete` takes that off. The daemons undeploy, and Ironic cleans the nodes.
    """
    settings = settings_with_ironic(ironic, ironic_db=ironic_db, bus=bus)
    if not settings.ironic_db_url:
        raise typer.BadParameter("the daemons' database is not named: give --ironic-db or MOOR_IRONIC_DB_URL")

    async def work() -> tuple[Sequence[NodeShown], bool]:
        async with reading_nodes(settings) as reader:
            found = {ProviderId(node.id): node for node in await found_nodes(reader, nodes)}
            if reader.away:
                fail(f"Ironic does not answer, so nothing was done: {reader.away}")
            instances = _instances_on([*found.values()])
            await _check_that_nobody_has(settings, [*found.values()], timedelta(seconds=settle))
            named = ", ".join(f"instance {instances[id_]} off {_named(node)}" for id_, node in found.items())
            if not yes and not sys.stdin.isatty():
                fail(f"nothing was done: this takes {named}. What is on the disks is lost: say so with --yes")
            if not yes and not typer.confirm(f"Take {named}? What is on the disks is lost", err=True):
                fail("nothing was done")
            await _order(reader, instances)
            ids = [str(id_) for id_ in found]

            def is_on(node: NodeShown | None) -> bool:
                has = node and node.ironic and node.ironic.instance_uuid
                return node is not None and has == instances[ProviderId(node.id)]

            by_s = asyncio.get_running_loop().time() + timeout
            is_done = not wait or await until_none(is_on, reader, ids, by_s)
            return [node for node in (await reader.find(ids)).values() if node is not None], is_done

    done, in_time = run(work())
    print_all(done, NODES)
    if not in_time:
        fail(
            f"not all are off within {timeout:g} s, and the daemons go on; `moor node show` says how far",
            NOT_IN_TIME,
        )


def _named(node: NodeShown) -> str:
    return f"node {node.name or node.id}"


def _instances_on(nodes: Sequence[NodeShown]) -> dict[ProviderId, InstanceId]:
    """What Ironic has on these nodes. Ends the command if one has nothing, or no daemon knows it."""
    instances: dict[ProviderId, InstanceId] = {}
    for each in nodes:
        if each.ironic is None or each.ironic.instance_uuid is None:
            fail(f"{_named(each)} has no instance in Ironic, so nothing was done")
        if not each.daemon:
            fail(f"no daemon knows {_named(each)} yet, so nothing was done")
        instances[ProviderId(each.id)] = InstanceId(ConsumerId(each.ironic.instance_uuid))
    return instances


async def _check_that_nobody_has(settings: Settings, nodes: Sequence[NodeShown], settle: timedelta) -> None:
    async with AsyncExitStack() as stack:
        api, cells = await stack.enter_async_context(clients(settings, PATIENCE_S))
        reader = reader_of(api, cells, await hosts_of(api), settings)
        places = Places({each.id: each for each in await providers_of(api)})
        seen = {each.ironic.id: seen_in_ironic(each.ironic) for each in nodes if each.ironic is not None}
        ids = [each.instance for each in seen.values() if each.instance is not None]
        views, asked = await reader.views_of(ids, ())
        sight = Sight(
            now=datetime.now(UTC),
            settle=settle,
            known=frozenset(reader.in_cell),
            cells=frozenset(reader.cells),
            computes=frozenset(reader.computes),
            asked=asked,
        )
        strays = {each.about for each in faults_on_nodes(ids, views, seen, sight, places)}
    for node in seen.values():
        if node.instance not in strays and node.instance is not None:
            why = _why_not(node.id, node.instance, views, places)
            fail(f"{node.words} has instance {node.instance}, {why}: nothing was done")


def _why_not(
    node: ProviderId, instance: ConsumerId, views: Mapping[ConsumerId, InstanceView], places: Places
) -> str:
    view = views.get(instance)
    if view is None:
        return "and Ironic works on the node, its cell does not answer, or another program keeps the node's provider"
    where = whereabouts(view, own_entry(view), places)
    if node in nodes_of(view):
        return f"and {where}; `moor delete {instance}` takes it off"
    return f"and {where}, which may be about to change: try again later"


async def _order(reader: NodeReader, instances: Mapping[ProviderId, InstanceId]) -> None:
    assert reader.rows is not None, "the daemons' database is named"
    async with reader.rows.transaction() as transaction:
        rows = (await transaction.load(instances.keys())).values()
        await transaction.save([with_stray(row, instances[row.id]) for row in rows])
