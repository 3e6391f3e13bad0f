"""`moor node adopt`: takes instances over that Ironic has on its nodes, and gives them back. Nothing is ordered from Ironic.

Each instance gets a project, a flavor and a name: from the command or its file, or from what Ironic has of the node. Everything is
looked at first; the node's daemon looks again, and refuses what Ironic does not have there, active.
"""

import asyncio
import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

import click
import msgspec
from msgspec import Struct, structs

from engine.inventories import ProviderId
from ironic_sync.core.offers import class_of
from ironic_sync.core.rows import OF_NOBODY, NodeRow
from ironic_sync.rest import HttpIronicApi
from ironic_sync.store_sql import IronicStore
from kit.clock import now
from moor.bare_metal.nodes import (
    NODE,
    NodeReader,
    NodeShown,
    classes_of_nodes,
    reading_nodes,
    settings_with_ironic,
    state_of,
    until,
)
from moor.client import Client, Flavor
from moor.client.errors import Rejected
from moor.flags import argument, option
from moor.options import NOT_DONE, BusUrl, IronicDatabaseUrl, IronicUrl, Output, client, fail, run
from moor.resource_commands import completes
from moor.showing import print_all
from moor.tables import Columns

PATIENCE_S = 30.0
ADOPTED = "adopted"
Stage = Literal["adopted", "to be adopted", "kept back", "given back"]


class Adoption(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The adoption of one node, as it is asked for in a file, planned and done. `reason` is why it is kept back."""

    node: str = ""
    instance: UUID | None = None
    project: str = ""
    user: str = ""
    flavor: str = ""
    name: str = ""
    stage: Stage = "kept back"
    reason: str = ""


_COLUMNS = Columns[Adoption](
    {
        "node": lambda each: each.node,
        "instance": lambda each: str(each.instance or ""),
        "name": lambda each: each.name,
        "project": lambda each: each.project,
        "flavor": lambda each: each.flavor,
        "is": lambda each: each.stage,
        "kept back by": lambda each: each.reason,
    },
    prose=("kept back by",),
)


def adopt(
    nodes: Annotated[
        list[str] | None,
        argument(metavar="NODE...", help=NODE.named_how, completes=completes(NODE)),
    ] = None,
    ironic: IronicUrl = "",
    ironic_db: IronicDatabaseUrl = "",
    bus: BusUrl = "",
    *,
    all_: Annotated[
        bool, option("--all", help="All active nodes with an instance that Moorage does not have.")
    ] = False,
    file: Annotated[
        Path | None,
        option(
            metavar="FILE",
            show_default=False,
            help="A JSON list or a CSV table of nodes, with the fields node, project, user, flavor and name.",
        ),
    ] = None,
    project: Annotated[
        str, option(help="Whose the instances are. Default: the node's lessee in Ironic, or its owner.")
    ] = "",
    user: Annotated[str, option(help="The user to whom they are counted.")] = "",
    flavor: Annotated[
        str, option(help="The stored flavor. Default: the only one that asks for the node's class.")
    ] = "",
    dry_run: Annotated[
        bool, option("--dry-run", help="Only say what would be adopted, and what keeps the others back.")
    ] = False,
    give_back: Annotated[
        bool, option("--give-back", help="Forget what was adopted, and leave it on the nodes.")
    ] = False,
    timeout: Annotated[float, option(metavar="S", min=0.1, help="Seconds to wait for the daemons.")] = 60.0,
    _output: Output = None,
) -> None:
    """Take instances over that Ironic has on its nodes, as they are. Nothing is ordered from Ironic, and nothing destroyed.

    The command may be repeated: what was adopted is left alone. Exit code 1 if nodes are kept back.
    """
    given = Adoption(project=project, user=user, flavor=flavor)
    asked = [structs.replace(given, node=each) for each in nodes or ()] + rows_in_file(file, given)
    if bool(asked) == all_ or (give_back and (all_ or dry_run)):
        raise click.BadParameter(
            "give nodes, or --file, or --all instead of both; --give-back is for nodes, and alone"
        )
    settings = settings_with_ironic(ironic, ironic_db=ironic_db, bus=bus)

    async def work() -> Sequence[Adoption]:
        async with (
            reading_nodes(settings) as reader,
            client(settings, operates=True, patience_s=PATIENCE_S) as moor,
        ):
            if reader.rows is None or reader.api is None:
                fail("the daemons' database is not named: give --ironic-db or MOOR_IRONIC_DB_URL")
            found = await reader.nodes_called(*[each.node for each in asked])
            strays = await _strays(reader, moor) if all_ else found
            if reader.away:
                fail(f"Ironic does not answer, so nothing was done: {reader.away}")
            if give_back:
                return [await _given_back(moor, each) for each in found]
            flavors = {each.name: each async for each in moor.list_flavors()}
            adopter = _Adopter(reader.api, reader.rows, moor, flavors, timeout)
            wanted = [*zip(asked or [given] * len(strays), strays, strict=True)]
            plans = [await adopter.planned(one, node) for one, node in wanted]
            if dry_run:
                return plans
            ordered = [
                await adopter.ordered(plan, node) for plan, (_, node) in zip(plans, wanted, strict=True)
            ]
            return [await adopter.ended(plan) for plan in ordered]

    done = run(work())
    print_all(done, _COLUMNS, "no node has an instance that Moorage does not have")
    if any(each.stage == "kept back" for each in done):
        raise click.exceptions.Exit(NOT_DONE)


def rows_in_file(file: Path | None, given: Adoption) -> list[Adoption]:
    """The rows of the file; what a row does not say is as the flags say."""
    if file is None:
        return []
    try:
        text = file.read_text(encoding="utf-8")
        is_json = text.lstrip().startswith("[")
        rows = msgspec.json.decode(text) if is_json else csv.DictReader(text.splitlines())
        flags = msgspec.to_builtins(given)
        return [msgspec.convert(flags | {k: v for k, v in row.items() if v}, Adoption) for row in rows]
    except (OSError, ValueError, AttributeError, TypeError) as problem:
        raise click.BadParameter(f"--file is '{file}': {problem}") from None


async def _strays(reader: NodeReader, moor: Client) -> list[NodeShown]:
    """The active nodes with an instance that Moorage does not have."""
    nodes = {
        str(each.ironic.instance_uuid): each
        for each in await reader.list_nodes()
        if each.ironic and each.ironic.instance_uuid and state_of(each) == "active"
    }
    called = await moor.instances_called(*nodes) if nodes else {}
    return [node for id_, node in nodes.items() if id_ not in called or called[id_].state == "deleted"]


async def _given_back(moor: Client, node: NodeShown) -> Adoption:
    back = Adoption(node=str(node.id))
    # Ironic may have another instance there: then the adoption was refused.
    async for each in moor.list_instances(host=str(node.id), living=True):
        back = structs.replace(back, instance=each.id, name=each.name, project=each.project)
    if back.instance is None:
        return _kept_back(back, "no instance is on it here")
    try:
        await moor.give_back(back.instance)
    except Rejected as refused:
        return _kept_back(back, refused.reason)
    return structs.replace(back, stage="given back")


def _kept_back(plan: Adoption, reason: str) -> Adoption:
    return structs.replace(plan, stage="kept back", reason=reason)


class _Adopter(Struct, frozen=True):
    api: HttpIronicApi
    rows: IronicStore
    moor: Client
    flavors: dict[str, Flavor]
    timeout_s: float

    async def planned(self, asked: Adoption, node: NodeShown) -> Adoption:
        there = node.ironic
        plan = structs.replace(asked, node=str(node.id))
        if there is None or not node.cell or not node.daemon:
            return _kept_back(plan, node.cell_note or "no daemon knows the node, or Ironic has it no more")
        named = class_of(there.resource_class)
        fitting = [
            name for name, each in self.flavors.items() if named and classes_of_nodes(each) == (named,)
        ]
        info = await self.api.instance_info(there.id)
        plan = structs.replace(
            plan,
            instance=there.instance_uuid,
            project=plan.project or there.lessee or there.owner or "",
            name=plan.name or str(info.get("display_name") or node.name),
            flavor=plan.flavor or (fitting[0] if len(fitting) == 1 else ""),
        )
        asks = (
            f"those that ask for {named or 'its class, which it has not,'} are {', '.join(fitting) or 'none'}"
        )
        found = {
            f"it is {there.provision_state!r} in Ironic, and must be 'active'": state_of(node) != "active",
            node.trouble: node.trouble != OF_NOBODY,
            "an order of a conductor is under way on it": node.deploy is not None,
            "Ironic has no instance on it: set its instance_uuid there": plan.instance is None,
            f"Ironic has instance {plan.instance} on it": asked.instance not in (None, plan.instance),
            "Ironic names no lessee or owner: give --project": not plan.project,
            f"flavor {plan.flavor!r} is none for it: {asks}": plan.flavor not in fitting,
        }
        why = "; ".join(words for words, is_so in found.items() if words and is_so)
        return _kept_back(plan, why) if why else structs.replace(plan, stage="to be adopted")

    async def ordered(self, plan: Adoption, node: NodeShown) -> Adoption:
        there = node.ironic
        if plan.reason or there is None or plan.instance is None:
            return plan
        if not await until(partial(self._is_heard, plan), self._by_s()):
            return _kept_back(plan, "its daemon has not heard of it: try again")
        try:
            state = await self.moor.adopt_on_node(
                there.id,
                plan.instance,
                self.flavors[plan.flavor],
                cell=node.cell,
                resource_class=class_of(there.resource_class),
                created_at=there.provision_updated_at or now(),
                project=plan.project,
                user=plan.user,
                name=plan.name,
            )
        except Rejected as refused:
            return _kept_back(plan, f"{refused.field}: {refused.reason}")
        if state.project != plan.project:
            return _kept_back(plan, f"it was adopted before, for project {state.project!r}")
        return plan

    async def ended(self, plan: Adoption) -> Adoption:
        """Wait until its daemon has adopted it, or has refused it."""
        if plan.reason:
            return plan
        why = await until(partial(self._answer, plan), self._by_s())
        if why == ADOPTED:
            return structs.replace(plan, stage="adopted")
        return _kept_back(plan, why or "its daemon has not answered: try again")

    def _by_s(self) -> float:
        return asyncio.get_running_loop().time() + self.timeout_s

    async def _row(self, plan: Adoption) -> NodeRow | None:
        node = ProviderId(UUID(plan.node))
        return (await self.rows.read([node])).get(node)

    async def _is_heard(self, plan: Adoption) -> bool:
        """Whether the daemons know that the instance is there: otherwise they would refuse it."""
        row = await self._row(plan)
        return row is not None and row.node is not None and row.node.instance_uuid == plan.instance

    async def _answer(self, plan: Adoption) -> str:
        """`ADOPTED`, or why the daemon has refused it; empty while it has not answered."""
        row = await self._row(plan)
        if row is not None and row.living is not None and row.living.instance == plan.instance:
            return ADOPTED
        for state in (await self.moor.instances_called(str(plan.instance))).values():
            if state.state == "error":
                return f"{state.reason}; `moor node adopt --give-back` forgets it, `moor delete` ends it"
        return ""
