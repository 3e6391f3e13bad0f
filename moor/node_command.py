"""`moor node`: bare-metal nodes, as Ironic says they are and as Moorage offers them; and an operator's orders to Ironic.

Orders go to Ironic's REST API (MOOR_IRONIC_URL, or the simulated Ironic of a `moor up` on this machine). What they change
reaches Moorage as it always does, by Ironic's notifications. An instance is put on a node and taken off by `moor boot` and
`moor delete` alone: there are no commands for that here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer

from bus.message import ProviderId
from ironic_sync.rest import CleanStep, Refused, UnreadableNode
from ironic_sync.rest_http import HttpIronicApi
from moor.nodes import PASSING, NodeReader, Nodes, NodeShown, reading_nodes
from moor.nodes_showing import nodes_table, print_node
from moor.options import (
    NOT_DONE,
    NOT_IN_TIME,
    AsJson,
    DatabaseUrl,
    IronicDatabaseUrl,
    IronicUrl,
    err,
    fail,
    out,
    run,
    settled,
)
from moor.settings import Settings
from moor.showing import plain, print_json
from moor.tables import print_table

T = TypeVar("T")
Order = Callable[[HttpIronicApi, ProviderId], Awaitable[Refused | None]]

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Bare-metal nodes: look, and give orders to Ironic."
)
maintenance = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Keep nodes out of use, or let them be used again."
)
power = typer.Typer(no_args_is_help=True, add_completion=False, help="Power of nodes that Ironic manages.")
app.add_typer(maintenance, name="maintenance")
app.add_typer(power, name="power")

Name = Annotated[str, typer.Argument(metavar="NODE", help="A node, by its id or by Ironic's name of it.")]
Names = Annotated[
    list[str], typer.Argument(metavar="NODE...", help="Nodes, by their ids or by Ironic's names of them.")
]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Follow the nodes until Ironic is done with them.")
]
Timeout = Annotated[
    float, typer.Option(metavar="S", min=0.1, help="Seconds to wait for that; then the exit code is 3.")
]
LOOK_AGAIN_S = 0.2
# How long the result of an order waits for what the daemons make of it.
HEARD_S = 2.0
WAIT_S = 120.0
SHOWN_MAX = 80
# Those of Ironic's verbs that need nothing but the node's name.
VERBS = {
    "manage": "Take nodes into Ironic's care, or out of `available`, to work on them: they are not offered then.",
    "provide": "Make nodes available that are `manageable`: Ironic cleans them first.",
    "inspect": "Find out what hardware nodes have that are `manageable`.",
    "adopt": "Take over nodes that run something already and are `manageable`: Moorage leaves them alone then.",
    "abort": "Break off cleaning or inspecting that waits for the node.",
}


@app.command("list")
def list_nodes(
    ironic: IronicUrl = "",
    ironic_db: IronicDatabaseUrl = "",
    db: DatabaseUrl = "",
    *,
    cell: Annotated[str, typer.Option(help="Only those of this cell.")] = "",
    daemon: Annotated[str, typer.Option(help="Only those that this daemon owns.")] = "",
    state: Annotated[str, typer.Option(help="Only those in this provision state.")] = "",
    unavailable: Annotated[
        bool, typer.Option("--unavailable", help="Only those of which nothing is offered.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """All nodes, in the order of their names: Ironic's state, and what is offered to placement or why not."""
    settings = _settings(ironic, ironic_db, db)

    async def work(reader: NodeReader) -> Nodes:
        return await reader.all()

    found = _with_reader(settings, work)
    nodes = [
        each
        for each in found.nodes
        if cell in ("", each.cell)
        and daemon in ("", each.daemon)
        and state in ("", (each.ironic and each.ironic.provision_state) or "")
        and not (unavailable and each.offered.amount)
    ]
    if as_json:
        print_json([plain(each) for each in nodes])
    elif nodes:
        print_table(nodes_table(nodes))
    else:
        out.print("no nodes")
    _tell_unreadable(found.unreadable)


@app.command()
def show(
    node: Name,
    ironic: IronicUrl = "",
    ironic_db: IronicDatabaseUrl = "",
    db: DatabaseUrl = "",
    *,
    as_json: AsJson = False,
) -> None:
    """All there is to know of one node."""
    settings = _settings(ironic, ironic_db, db)

    async def work(reader: NodeReader) -> NodeShown:
        return (await _found(reader, [node]))[0]

    found = _with_reader(settings, work)
    if as_json:
        print_json(plain(found))
    else:
        print_node(found)


@maintenance.command("on")
def maintenance_on(
    nodes: Names,
    ironic: IronicUrl = "",
    *,
    reason: Annotated[
        str, typer.Option(help="Why: Ironic keeps it, and it is shown as the reason why nothing is offered.")
    ],
    as_json: AsJson = False,
) -> None:
    """Nothing new is put on these nodes from now on; what is on them stays."""

    async def order(api: HttpIronicApi, id_: ProviderId) -> Refused | None:
        return await api.set_maintenance(id_, reason)

    _order(nodes, "maintenance on", order, ironic, as_json=as_json)


@maintenance.command("off")
def maintenance_off(nodes: Names, ironic: IronicUrl = "", *, as_json: AsJson = False) -> None:
    """They may be used again."""

    async def order(api: HttpIronicApi, id_: ProviderId) -> Refused | None:
        return await api.set_maintenance(id_, is_on=False)

    _order(nodes, "maintenance off", order, ironic, as_json=as_json)


def _add_verb(verb: str, says: str) -> None:
    """A command that is one of Ironic's verbs and nothing more."""

    @app.command(verb, help=says)
    def command(
        nodes: Names,
        ironic: IronicUrl = "",
        *,
        wait: Wait = True,
        timeout: Timeout = WAIT_S,
        as_json: AsJson = False,
    ) -> None:
        async def order(api: HttpIronicApi, id_: ProviderId) -> Refused | None:
            return await api.set_provision_state(id_, verb)

        _order(nodes, verb, order, ironic, wait_s=timeout if wait else 0.0, as_json=as_json)


for _verb, _says in VERBS.items():
    _add_verb(_verb, _says)


@app.command()
def clean(
    nodes: Names,
    ironic: IronicUrl = "",
    *,
    steps: Annotated[
        str,
        typer.Option(
            metavar="JSON|FILE",
            help='What is to be done, as Ironic has it: [{"interface": "deploy", "step": "erase_devices_metadata"}].',
        ),
    ],
    wait: Wait = True,
    timeout: Timeout = WAIT_S,
    as_json: AsJson = False,
) -> None:
    """Clean nodes by hand that are `manageable`, by these steps. They are `manageable` again when that is done."""
    told = _steps(steps)

    async def order(api: HttpIronicApi, id_: ProviderId) -> Refused | None:
        return await api.clean(id_, told)

    _order(nodes, "clean", order, ironic, wait_s=timeout if wait else 0.0, as_json=as_json)


@power.command("on")
def power_on(nodes: Names, ironic: IronicUrl = "", *, as_json: AsJson = False) -> None:
    """Switch nodes on."""
    _set_power(nodes, "power on", ironic, as_json=as_json)


@power.command("off")
def power_off(nodes: Names, ironic: IronicUrl = "", *, as_json: AsJson = False) -> None:
    """Switch nodes off, at once."""
    _set_power(nodes, "power off", ironic, as_json=as_json)


@power.command("reboot")
def power_reboot(nodes: Names, ironic: IronicUrl = "", *, as_json: AsJson = False) -> None:
    """Switch nodes off and on again."""
    _set_power(nodes, "rebooting", ironic, as_json=as_json)


def _steps(told: str) -> list[CleanStep]:
    """As JSON, or from a file of it."""
    text = told
    if not told.lstrip().startswith(("[", "{")):
        try:
            text = Path(told).read_text(encoding="utf-8")
        except (OSError, ValueError) as problem:
            raise typer.BadParameter(
                f"--steps is {told!r}, which is no JSON list and no file: {problem}"
            ) from None
    try:
        steps = msgspec.json.decode(text, type=list[CleanStep])
    except msgspec.DecodeError as problem:
        raise typer.BadParameter(f"--steps is {text[:SHOWN_MAX]!r}: {problem}") from None
    if not steps:
        raise typer.BadParameter("--steps is an empty list: Ironic needs at least one")
    return steps


def _set_power(nodes: Sequence[str], target: str, ironic: str, *, as_json: bool) -> None:
    async def order(api: HttpIronicApi, id_: ProviderId) -> Refused | None:
        return await api.set_power_state(id_, target)

    _order(nodes, target, order, ironic, as_json=as_json)


def _order(
    names: Sequence[str], what: str, order: Order, ironic: str, *, wait_s: float = 0.0, as_json: bool
) -> None:
    """Order it of each node; what Ironic refuses of one is no reason to leave out the next."""
    settings = _settings(ironic)
    if not settings.ironic_url:
        raise typer.BadParameter(
            "no Ironic is named, and there is no `moor up --nodes` on this machine: give --ironic or MOOR_IRONIC_URL"
        )

    async def work(reader: NodeReader) -> tuple[list[NodeShown], dict[str, Refused], bool]:
        assert reader.api is not None, "an Ironic was named"
        found = await _found(reader, names)
        refused: dict[str, Refused] = {}
        for name, node in zip(names, found, strict=True):
            if (answer := await order(reader.api, ProviderId(node.id))) is not None:
                refused[name] = answer
        ids = [str(node.id) for node in found]
        waited_for = [id_ for id_, name in zip(ids, names, strict=True) if name not in refused]
        in_time = await _until_settled(reader, waited_for, wait_s) if wait_s else True
        await _until_heard(reader, ids)
        return await _found(reader, ids), refused, in_time

    nodes, refused, in_time = _with_reader(settings, work)
    if as_json:
        print_json([plain(each) for each in nodes])
    else:
        print_table(nodes_table(nodes))
    _conclude(nodes, what, refused, in_time=in_time, wait_s=wait_s)


def _conclude(
    nodes: Sequence[NodeShown], what: str, refused: Mapping[str, Refused], *, in_time: bool, wait_s: float
) -> None:
    for name, answer in refused.items():
        _say(f"node {name}: Ironic refuses {what!r} ({answer.status}): {answer.message}")
    failed = [each for each in nodes if wait_s and _has_failed(each)]
    for each in failed:
        assert each.ironic is not None, "it was read"
        why = each.ironic.last_error or "Ironic does not say why"
        _say(f"node {each.name or each.id} is in {each.ironic.provision_state!r}: {why}")
    if refused or failed:
        raise typer.Exit(NOT_DONE)
    if not in_time:
        fail(f"Ironic is not done within {wait_s:g} s; `moor node show` follows up", NOT_IN_TIME)


async def _until_settled(reader: NodeReader, ids: Sequence[str], wait_s: float) -> bool:
    """Until Ironic works on none of them; False if time is up before."""

    def are_settled(nodes: Iterable[NodeShown | None]) -> bool:
        return not any(map(_is_under_way, nodes))

    return await _until(reader, ids, are_settled, wait_s)


async def _until_heard(reader: NodeReader, ids: Sequence[str]) -> None:
    """Ironic's notifications and the report to placement take a moment: what is shown as offered would be that of before."""

    def are_heard(nodes: Iterable[NodeShown | None]) -> bool:
        return not any(node and PASSING & {*node.offered.reasons} for node in nodes)

    await _until(reader, ids, are_heard, HEARD_S)


async def _until(
    reader: NodeReader, ids: Sequence[str], is_so: Callable[[Iterable[NodeShown | None]], bool], wait_s: float
) -> bool:
    by_s = asyncio.get_running_loop().time() + wait_s
    while not is_so((await reader.find(ids)).values()):
        if asyncio.get_running_loop().time() > by_s:
            return False
        await asyncio.sleep(LOOK_AGAIN_S)
    return True


def _is_under_way(node: NodeShown | None) -> bool:
    """Ironic has a target for the node; one that it could not reach stays."""
    known = node and node.ironic
    return bool(known and known.target_provision_state) and not _has_failed(node)


def _has_failed(node: NodeShown | None) -> bool:
    state = (node and node.ironic and node.ironic.provision_state) or ""
    return state.endswith("failed") or state == "error"


async def _found(reader: NodeReader, names: Sequence[str]) -> list[NodeShown]:
    found = await reader.find(names)
    if missing := [repr(name) for name in names if found[name] is None]:
        fail(f"there is no node {', '.join(missing)}: nothing was done; `moor node list` shows what there is")
    return [node for name in names if (node := found[name]) is not None]


def _settings(ironic: str, ironic_db: str = "", db: str = "") -> Settings:
    return settled(ironic=ironic, ironic_db=ironic_db, db=db)


def _with_reader(settings: Settings, work: Callable[[NodeReader], Awaitable[T]]) -> T:
    if not settings.ironic_url and not settings.ironic_db_url:
        raise typer.BadParameter(
            "neither an Ironic nor a database of its daemons is named, and there is no `moor up --nodes` on this machine: "
            "give --ironic or MOOR_IRONIC_URL, --ironic-db or MOOR_IRONIC_DB_URL"
        )

    async def with_reader() -> T:
        async with reading_nodes(settings) as reader:
            return await work(reader)

    return run(with_reader())


def _tell_unreadable(nodes: Sequence[UnreadableNode]) -> None:
    for each in nodes:
        _say(f"node {each.id or 'without an id'} is not as it must be: {each.reason}")


def _say(line: str) -> None:
    err.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
