"""`moor node`: shows bare-metal nodes, as Ironic has them and as Moorage offers them, and sends operators' orders to Ironic.

Orders go to Ironic's REST API (MOOR_IRONIC_URL, or the simulated Ironic of a `moor up` on this machine). Their effects reach
Moorage by Ironic's notifications, as always. `moor boot` and `moor delete` put an instance on a node or remove it;
`moor node undeploy` removes one that nobody has.

While Ironic works on a node it holds the node's lock, for a minute or more, and takes no other order. So an order waits for the lock, for
as long as the command may wait.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import click
import msgspec

from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ProviderId
from ironic_sync.core.node import is_of_nobody
from ironic_sync.core.settling import with_stray
from ironic_sync.rest import CleanStep, Console, HttpIronicApi, IronicRefused
from kit.errors import Locked, Operational, TookTooLong, Unavailable
from moor.bare_metal.adopt_command import adopt
from moor.bare_metal.nodes import (
    LOOK_AGAIN_S,
    NODE,
    TEMPORARY_REASONS,
    NodeReader,
    NodeShown,
    reading_nodes,
    seen_in_ironic,
    settings_with_ironic,
    state_of,
    until,
)
from moor.bare_metal.ring_command import app as ring
from moor.flags import Commands, argument, option
from moor.instances.requests import text_in
from moor.options import (
    NOT_DONE,
    NOT_IN_TIME,
    BusUrl,
    IronicDatabaseUrl,
    IronicUrl,
    Output,
    Settle,
    be_sure,
    cell_clients,
    client,
    fail,
    run_with,
    say,
    tell,
    wrong_value,
)
from moor.resource_commands import commands_of, completes
from moor.settings import Settings
from moor.showing import print_all, print_one

T = TypeVar("T")
Order = Callable[[HttpIronicApi, ProviderId], Awaitable[IronicRefused | None]]

app = commands_of(NODE, "Bare-metal nodes: show them, and send orders to Ironic.")
maintenance = Commands("Put nodes into maintenance, or take them out.")
power = Commands("Switch the power of nodes.")
app.add_command(maintenance, "maintenance")
app.add_command(power, "power")
app.add_command(ring, "ring")
app.verb()(adopt)

complete_nodes = completes(NODE)
Name = Annotated[str, argument(metavar="NODE", help=NODE.named_how, completes=complete_nodes)]
Names = Annotated[
    list[str],
    argument(
        metavar="NODE...",
        help="Nodes' ids, their names in Ironic, or the ids or names of the instances on them.",
        completes=complete_nodes,
    ),
]
Wait = Annotated[
    bool, option("--wait/--no-wait", help="Wait until Ironic has finished its work on the nodes.")
]
Timeout = Annotated[
    float, option(metavar="S", min=0.1, help="Seconds to wait; after that the exit code is 3.")
]
LockTimeout = Annotated[
    float,
    option(
        "--timeout",
        metavar="S",
        min=0.1,
        help="Seconds to wait for a node that Ironic works on; after that the exit code is 1.",
    ),
]
# How long a command waits until the daemons have heard of its effect and reported it to placement.
HEARD_S = 2.0
WAIT_S = 120.0
SHOWN_MAX = 80
# Ironic's verbs that need no argument besides the node.
VERBS = {
    "manage": "Move nodes to `manageable`, from `enroll` or `available`. Moorage does not offer manageable nodes.",
    "provide": "Move `manageable` nodes to `available`. Ironic cleans them first.",
    "inspect": "Let Ironic inspect the hardware of `manageable` nodes.",
    "unrescue": "Let the instances of nodes in rescue run again.",
    "ironic-adopt": "Bring `manageable` nodes that already run something to `active`, by Ironic's own verb `adopt`.",
    "abort": "Abort a cleaning or inspection that waits for the node.",
}
# By the command: Ironic's name of the target, and the help.
POWER = {
    "on": ("power on", "Switch nodes on."),
    "off": ("power off", "Switch nodes off immediately."),
    "reboot": ("rebooting", "Switch nodes off and on again."),
}


@maintenance.verb("on")
def maintenance_on(
    nodes: Names,
    ironic: IronicUrl = "",
    *,
    reason: Annotated[
        str,
        option(help="Why: Ironic stores it, and `moor node` shows it as the reason why nothing is offered."),
    ],
    timeout: LockTimeout = WAIT_S,
    _output: Output = None,
) -> None:
    """Put nodes into maintenance: nothing new is built on them from now on. Their instances stay."""
    _order(
        nodes,
        "maintenance on",
        lambda api, id_: api.set_maintenance(id_, reason),
        ironic,
        timeout,
    )


@maintenance.verb("off")
def maintenance_off(
    nodes: Names, ironic: IronicUrl = "", *, timeout: LockTimeout = WAIT_S, _output: Output = None
) -> None:
    """Take nodes out of maintenance: they may be used again."""
    _order(
        nodes,
        "maintenance off",
        lambda api, id_: api.set_maintenance(id_, is_on=False),
        ironic,
        timeout,
    )


def _add_verb(name: str, help_text: str) -> None:
    # `adopt` alone is the command of Moorage.
    verb = name.removeprefix("ironic-")

    @app.verb(name, help=help_text)
    def command(
        nodes: Names,
        ironic: IronicUrl = "",
        *,
        wait: Wait = True,
        timeout: Timeout = WAIT_S,
        _output: Output = None,
    ) -> None:
        _order(
            nodes,
            verb,
            lambda api, id_: api.set_provision_state(id_, verb),
            ironic,
            timeout,
            waits=wait,
        )


def _add_power(name: str, target: str, help_text: str) -> None:
    @power.verb(name, help=help_text)
    def command(
        nodes: Names, ironic: IronicUrl = "", *, timeout: LockTimeout = WAIT_S, _output: Output = None
    ) -> None:
        _order(nodes, target, lambda api, id_: api.set_power_state(id_, target), ironic, timeout)


for _verb, _help_text in VERBS.items():
    _add_verb(_verb, _help_text)
for _name, (_target, _help_text) in POWER.items():
    _add_power(_name, _target, _help_text)


@app.verb()
def clean(
    nodes: Names,
    ironic: IronicUrl = "",
    *,
    steps: Annotated[
        str,
        option(
            metavar="JSON|FILE",
            help='The clean steps, in Ironic\'s format: [{"interface": "deploy", "step": "erase_devices_metadata"}].',
        ),
    ],
    wait: Wait = True,
    timeout: Timeout = WAIT_S,
    _output: Output = None,
) -> None:
    """Clean `manageable` nodes manually, by these steps. After that they are `manageable` again."""
    parsed = _steps(steps)
    _order(
        nodes,
        "clean",
        lambda api, id_: api.set_provision_state(id_, "clean", clean_steps=parsed),
        ironic,
        timeout,
        waits=wait,
    )


@app.verb()
def rescue(
    node: Name,
    ironic: IronicUrl = "",
    *,
    password_file: Annotated[
        Path | None,
        option(
            metavar="FILE",
            show_default=False,
            help="A file with the password of the user `rescue`. Default: a new one, which is printed.",
        ),
    ] = None,
    wait: Wait = True,
    timeout: Timeout = WAIT_S,
    _output: Output = None,
) -> None:
    """Boot a rescue image on a node whose instance does not start any more. The instance's disk stays; `unrescue` ends it."""
    password = _password_in(password_file) if password_file else secrets.token_urlsafe(12)
    _order(
        [node],
        "rescue",
        lambda api, id_: api.set_provision_state(id_, "rescue", rescue_password=password),
        ironic,
        timeout,
        waits=wait,
        then="" if password_file else f"the password of user rescue is {password}",
    )


@app.verb()
def console(
    node: Name,
    ironic: IronicUrl = "",
    *,
    off: Annotated[bool, option("--off", help="Switch the console off.")] = False,
    timeout: Timeout = WAIT_S,
    _output: Output = None,
) -> None:
    """Switch a node's serial console on, and say where it is."""
    settings = settings_with_ironic(ironic)

    async def work(reader: NodeReader) -> tuple[str, Console | IronicRefused | None]:
        assert reader.api is not None, "the settings name an Ironic"
        found = await reader.show_node(node)
        id_ = ProviderId(found.id)
        by_s = _now_s() + timeout
        refused = await _once_unlocked(partial(reader.api.set_console, id_, is_on=not off), by_s)
        return found.name or str(id_), refused or await _console_once(reader.api, id_, by_s, is_on=not off)

    name, seen = run_with(reading_nodes(settings), work)
    if isinstance(seen, IronicRefused):
        fail(f"node {name}: Ironic refuses the console ({seen.status}): {seen.message}")
    if seen is None:
        fail(f"Ironic has not switched the console within {timeout:g} s, and goes on", NOT_IN_TIME)
    print_one(seen, _print_console)


async def _console_once(
    api: HttpIronicApi, node: ProviderId, by_s: float, *, is_on: bool
) -> Console | IronicRefused | None:
    """The console of this node as soon as it is on, or off. None if that is not so in time."""

    async def switched() -> Console | IronicRefused | None:
        seen = await api.console(node)
        return seen if isinstance(seen, IronicRefused) or seen.is_on == is_on else None

    return await until(switched, by_s)


def _print_console(console: Console) -> None:
    if not console.is_on:
        say("the console is off")
        return
    info = console.info or {}
    say(f"{info.get('type', 'console')}: {info.get('url', 'Ironic names no URL')}")


def _password_in(file: Path) -> str:
    password = text_in("--password-file", file).strip()
    if not password:
        raise click.BadParameter(f"--password-file is '{file}', which is empty")
    return password


def _steps(given: str) -> list[CleanStep]:
    """Parse a list of clean steps, given as JSON or as the path of a file with JSON."""
    text = given
    if not given.lstrip().startswith(("[", "{")):
        with wrong_value(
            f"--steps is {given!r}, which is neither a JSON list nor a readable file: ", OSError
        ):
            text = Path(given).read_text(encoding="utf-8")
    with wrong_value(f"--steps is {text[:SHOWN_MAX]!r}: "):
        steps = msgspec.json.decode(text, type=list[CleanStep])
    if not steps:
        raise click.BadParameter("--steps is an empty list: Ironic needs at least one")
    return steps


def _order(
    names: Sequence[str],
    what: str,
    order: Order,
    ironic: str,
    timeout_s: float,
    *,
    waits: bool = False,
    then: str = "",
) -> None:
    """Send the order for each node. If Ironic refuses one, or goes on holding its lock, go on with the next. `waits` says that the
    order is over only when Ironic has finished its work. `then` is told if all nodes got the order.
    """
    settings = settings_with_ironic(ironic)

    async def work(reader: NodeReader) -> tuple[list[NodeShown], bool, bool]:
        assert reader.api is not None, "the settings name an Ironic"
        # A node that is named twice, such as by its name and by its id, gets one order.
        found: dict[int, tuple[str, NodeShown]] = {}
        for name, node in zip(names, await reader.nodes_called(*names), strict=True):
            found.setdefault(node.id.int, (name, node))
        by_s = _now_s() + timeout_s
        ordered = await _send(partial(order, reader.api), what, dict(found.values()), by_s)
        in_time = not waits or await until_none(_is_under_way, reader, ordered, by_s)
        ids = [str(node.id) for _, node in found.values()]
        # Otherwise the command would show the offer from before the order.
        await until_none(_is_unheard, reader, ids, _now_s() + HEARD_S)
        return await reader.nodes_called(*ids), len(ordered) == len(found), in_time

    nodes, all_ordered, in_time = run_with(reading_nodes(settings), work)
    print_all(nodes, NODE.columns)
    if then and all_ordered:
        tell(then)
    failed = [each for each in nodes if waits and _has_failed(each)]
    for each in failed:
        assert each.ironic is not None, "a failed node has a state in Ironic"
        why = each.ironic.last_error or "Ironic gives no reason"
        tell(f"node {each.name or each.id} is in state {each.ironic.provision_state!r}: {why}", "red")
    if failed or not all_ordered:
        raise click.exceptions.Exit(NOT_DONE)
    if not in_time:
        fail(
            f"Ironic has not finished within {timeout_s:g} s, and goes on; `moor node show` shows the state",
            NOT_IN_TIME,
        )


async def _send(
    order: Callable[[ProviderId], Awaitable[IronicRefused | None]],
    what: str,
    nodes: Mapping[str, NodeShown],
    by_s: float,
) -> list[str]:
    """Send the order for each of the nodes. Return the ids of those that got it, and tell at once why another did not."""
    ordered: list[str] = []
    for name, node in nodes.items():
        try:
            refused = await _once_unlocked(partial(order, ProviderId(node.id)), by_s)
        except (Unavailable, TookTooLong) as problem:
            rest = [*nodes][[*nodes].index(name) + 1 :]
            more = f"; nothing was ordered for {', '.join(rest)}" if rest else ""
            tell(f"node {name}: {problem}{more}", "red")
            break
        except Operational as problem:
            tell(f"node {name}: {problem}", "red")
            continue
        if refused is None:
            ordered.append(str(node.id))
        else:
            tell(f"node {name}: Ironic refuses {what!r} ({refused.status}): {refused.message}", "red")
    return ordered


async def _once_unlocked(
    order: Callable[[], Awaitable[IronicRefused | None]], by_s: float
) -> IronicRefused | None:
    """Send the order, and again while Ironic holds the node's lock and there is time."""
    is_told = False
    while True:
        try:
            return await order()
        except Locked as problem:
            if _now_s() > by_s:
                raise
            if not is_told:
                tell(f"{problem}; waiting for it", "yellow")
            is_told = True
        await asyncio.sleep(LOOK_AGAIN_S)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def until_none(
    is_so: Callable[[NodeShown | None], bool], reader: NodeReader, ids: Sequence[str], by_s: float
) -> bool:
    """Wait until `is_so` holds for none of the nodes. Return False if time is up before."""

    async def is_over() -> bool:
        return not any(map(is_so, (await reader.find(ids)).values()))

    return await until(is_over, by_s)


def _is_unheard(node: NodeShown | None) -> bool:
    """Have the daemons not yet heard of the node's change, or not yet reported it to placement?"""
    return node is not None and not TEMPORARY_REASONS.isdisjoint(node.offered.reasons)


def _is_under_way(node: NodeShown | None) -> bool:
    """Does Ironic have a target state for the node? After a failure the target stays, so failed nodes do not count."""
    known = node and node.ironic
    return bool(known and known.target_provision_state) and not _has_failed(node)


def _has_failed(node: NodeShown | None) -> bool:
    state = state_of(node) if node else ""
    return state.endswith("failed") or state == "error"


# `moor node undeploy`: takes instances off bare-metal nodes that Ironic has there and nobody has in the books.
#
# `moor audit` finds them. The command looks into the books itself, and refuses what may belong to somebody. It writes the order on
# the daemons' rows; the node's owner undeploys, as after a late request of an abandoned deploy. Where Ironic has deployed a node for
# nobody, there is no instance to be ended, and the order goes to Ironic itself.

PATIENCE_S = 30.0


@app.verb()
def undeploy(
    nodes: Names,
    ironic: IronicUrl = "",
    ironic_db: IronicDatabaseUrl = "",
    bus: BusUrl = "",
    *,
    yes: Annotated[bool, option("--yes", help="Do not ask: what is on the disks is lost.")] = False,
    settle: Settle = 60,
    wait: Wait = True,
    timeout: Timeout = WAIT_S,
    _output: Output = None,
) -> None:
    """Take instances off nodes that Ironic has there and nobody has in the books: what `moor audit` calls stray on node, or deployed
    for nobody.

    An instance that anybody has is left alone: `moor delete` takes that off. The daemons undeploy, and Ironic cleans the nodes.
    """
    settings = settings_with_ironic(ironic, ironic_db=ironic_db, bus=bus)
    if not settings.ironic_db_url:
        raise click.BadParameter("the daemons' database is not named: give --ironic-db or MOOR_IRONIC_DB_URL")

    async def work(reader: NodeReader) -> tuple[Sequence[NodeShown], bool]:
        found = {ProviderId(node.id): node for node in await reader.nodes_called(*nodes)}
        if reader.away:
            fail(f"Ironic does not answer, so nothing was done: {reader.away}")
        instances = _instances_on([*found.values()])
        await _check_that_nobody_has(settings, [*found.values()], settle)
        named = ", ".join(f"{_words(instances[id_])} off {_named(node)}" for id_, node in found.items())
        be_sure(f"this takes {named}. What is on the disks is lost", yes=yes)
        await _undeploy(reader, found, instances)
        ids = [str(id_) for id_ in found]

        def is_on(node: NodeShown | None) -> bool:
            if node is None or node.ironic is None:
                return False
            instance = instances[ProviderId(node.id)]
            return is_of_nobody(node.ironic) if instance is None else node.ironic.instance_uuid == instance

        is_done = not wait or await until_none(is_on, reader, ids, _now_s() + timeout)
        return [node for node in (await reader.find(ids)).values() if node is not None], is_done

    done, in_time = run_with(reading_nodes(settings), work)
    print_all(done, NODE.columns)
    if not in_time:
        fail(
            f"not all are off within {timeout:g} s, and the daemons go on; `moor node show` says how far",
            NOT_IN_TIME,
        )


def _named(node: NodeShown) -> str:
    return f"node {node.name or node.id}"


def _words(instance: InstanceId | None) -> str:
    return f"instance {instance}" if instance is not None else "what nobody has"


def _instances_on(nodes: Sequence[NodeShown]) -> dict[ProviderId, InstanceId | None]:
    """What Ironic has on these nodes, None for what nobody has. Ends the command if one has nothing, or no daemon knows it."""
    instances: dict[ProviderId, InstanceId | None] = {}
    for each in nodes:
        node = each.ironic
        if node is None or (node.instance_uuid is None and not is_of_nobody(node)):
            fail(f"{_named(each)} has no instance in Ironic, so nothing was done")
        if not each.daemon:
            fail(f"no daemon knows {_named(each)} yet, so nothing was done")
        if each.lives not in (None, node.instance_uuid):
            fail(
                f"instance {each.lives} lives on {_named(each)} by the books; `moor delete` ends it: nothing was done"
            )
        if each.deploy is not None and each.deploy.kind != "undeploy":
            fail(f"{each.deploy.kind} is under way on {_named(each)}: nothing was done")
        instances[ProviderId(each.id)] = (
            None if node.instance_uuid is None else InstanceId(ConsumerId(node.instance_uuid))
        )
    return instances


async def _check_that_nobody_has(settings: Settings, nodes: Sequence[NodeShown], settle_s: float) -> None:
    seen = [seen_in_ironic(each.ironic) for each in nodes if each.ironic is not None]
    async with (
        client(settings, operates=True, patience_s=PATIENCE_S) as moor,
        cell_clients(settings, PATIENCE_S) as below,
    ):
        cells = settings.addresses.cells
        had = await moor.why_no_strays(seen, settle_s=settle_s, cells=cells, below=below)
        for each in seen:
            async for living in moor.list_instances(host=str(each.id), living=True):
                if living.id != each.instance:
                    fail(f"{each.words} is the host of instance {living.id} by the books: nothing was done")
    for node in seen:
        if node.instance is not None and node.instance in had:
            fail(f"{node.words} has instance {node.instance}, {had[node.instance]}: nothing was done")


async def _undeploy(
    reader: NodeReader,
    nodes: Mapping[ProviderId, NodeShown],
    instances: Mapping[ProviderId, InstanceId | None],
) -> None:
    assert reader.rows is not None, "the daemons' database is named"
    assert reader.api is not None, "the settings name an Ironic"
    named = {id_: instance for id_, instance in instances.items() if instance is not None}
    async with reader.rows.transaction() as transaction:
        rows = (await transaction.load(named)).values()
        for row in rows:
            if row.living is not None and row.living.instance != nodes[row.id].lives:
                fail(f"instance {row.living.instance} was just adopted on node {row.id}: nothing was done")
        await transaction.save([with_stray(row, named[row.id]) for row in rows])
    for id_ in instances.keys() - named.keys():
        if (refused := await reader.api.set_provision_state(id_, "deleted")) is not None:
            fail(f"node {id_}: Ironic refuses to release it ({refused.status}): {refused.message}")
