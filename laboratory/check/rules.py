"""The rules that a compute is checked for, and how they are tried, one after another. docs/write-a-compute.md says them for people.

What the answer to an order must be is decided by compute_sim/core/attempts.py (orders.py). Each rule has instances of its own, so that
one that is broken breaks no other.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from uuid import uuid4

import msgspec
from msgspec import Struct, structs

from bus.messages.cell import InstanceSpawned, SpawnFailed
from bus.messages.hosts import CheckHost, HostsAlive, HostsNotHere, HostsReported
from bus.messages.placement import ReportInventory
from compute_sim.core.attempts import HostOrder
from engine.flavors import Flavor, Image
from engine.inventories import ProviderId
from kit.errors import Failure, NotFound, Operational
from laboratory.check.orders import (
    ANSWERS,
    HostUnderCheck,
    InstanceOrders,
    after_a_reshape,
    destroy_twice,
    interruptions,
    rebuild,
    resize_in_place,
    stop_and_start,
    without_running,
)
from laboratory.check.session import (
    CannotCheck,
    CheckSession,
    Heard,
    RuleBroken,
    Wire,
    as_text,
    hosts_of,
    impossible_share,
    opened_wire,
    report_of,
    run_command,
)

Test = Callable[[CheckSession], Awaitable[None]]


def obeys(
    orders_of: Callable[[InstanceOrders], Iterable[HostOrder]], lists: Sequence[int] | None = None
) -> Test:
    """The compute obeys these orders about a new instance, one after another, and then lists these attempts of it."""

    async def test(session: CheckSession) -> None:
        of = session.instance()
        await session.obeyed(*orders_of(of))
        if lists is not None:
            await session.must_hold(of, *lists)

    return test


async def never_runs_again(session: CheckSession) -> None:
    of = session.instance()
    await session.obeyed(of.spawn(), of.destroy(), of.spawn())
    await session.must_hold(of)
    # The order to destroy has overtaken the one to spawn.
    late = session.instance()
    await session.answered(late.destroy(), late.spawn())
    await session.must_hold(late)


async def goes_by_numbers(session: CheckSession) -> None:
    of = session.instance()
    orders = (
        of.spawn(),
        of.start(7),
        of.stop(7),
        of.stop(9),
        of.start(8),
        of.stop(7),
        of.start(9),
        of.stop(9),
    )
    await session.obeyed(*orders)
    built = session.instance()
    await session.obeyed(built.spawn(), built.respawn(8), built.stop(7), built.start(7))


async def resizes(session: CheckSession) -> None:
    of = session.instance()
    spawn, stop, receive, destroy = resize_in_place(of)
    await session.obeyed(spawn, stop, receive)
    await session.must_hold(of, 1, 2)
    await session.answered(destroy)
    await session.must_hold(of, 2)


async def saves(session: CheckSession) -> None:
    of = session.instance()
    await session.obeyed(of.spawn(), of.stop(1, save_as=f"{of.instance}-1"))
    later = session.instance()
    await session.obeyed(later.spawn(), later.stop(1), later.stop(1, save_as=f"{later.instance}-1"))


async def refuses(session: CheckSession) -> None:
    one, two, three = session.instance(), session.instance(), session.instance()
    await session.obeyed(one.stop(1), two.start(1), three.respawn(1))
    for each in (one, two, three):
        await session.must_hold(each)


async def receives_only_what_is_stopped(session: CheckSession) -> None:
    of = session.instance()
    await session.obeyed(of.spawn(), of.receive())
    # It was refused, and the source is as it was.
    await session.must_hold(of, 1)
    await session.answered(of.stop(1))
    await session.answered(session.instance().receive())


async def is_interrupted(session: CheckSession) -> None:
    for each in interruptions(lambda _: session.instance()):
        if each.depends_on_time:
            continue
        await session.obeyed(*each.before)
        await session.answered(each.work, each.last)


async def moves(session: CheckSession) -> None:
    """Between two hosts, cold and live."""
    assert session.other is not None
    for is_live in (False, True):
        of = session.instance()
        there = InstanceOrders(session.other, of.instance)
        await session.obeyed(of.spawn(), *(() if is_live else (of.stop(1),)))
        await session.answered(there.receive(session.host.host, live=is_live))
        await session.obeyed(of.destroy(), there.stop(2, attempt=2))


# Orders that are under way when the compute is restarted.
UNDER_WAY = 20
# An answer may have to wait for the command, until the host is heard again, and for its own work.
RESTART_LIMITS = 3
NOT_JSON = b'{"message": {"type": "spawn", no JSON'


async def reports(session: CheckSession) -> None:
    report = session.report()
    wanted = "inventory.report of the host's tree with inventories of its root or below"
    if report is None:
        raise RuleBroken("nothing", wanted, "none since this check began: it is sent at the start")
    if report.root not in {each.id for each in report.providers}:
        raise RuleBroken("nothing", "the root among the providers", as_text(report))
    if not any(each.inventories for each in report.providers):
        raise RuleBroken("nothing", wanted, as_text(report))


async def tells_facts(session: CheckSession) -> None:
    def look(heard: Heard) -> bool | None:
        told = heard.message.hosts if isinstance(heard.message, HostsReported) else ()
        return any(each.id == session.host.host for each in told) or None

    if not await session.until(look, 0):
        raise RuleBroken("nothing", "host.state with the host", "none since this check began")


async def lives(session: CheckSession) -> None:
    def look(heard: Heard) -> bool | None:
        told = heard.message.hosts if isinstance(heard.message, HostsAlive) else ()
        return session.host.host in told or None

    if not await session.wire.until(look, session.beat_s_max, len(session.wire.heard)):
        raise RuleBroken("nothing", "a host.beat with the host", f"none in {session.beat_s_max:g} s")


async def lists(session: CheckSession) -> None:
    built = sorted([session.instance() for _ in range(3)], key=lambda each: each.instance)
    for each in built:
        await session.answered(each.spawn())
    ids = [each.instance for each in built]
    for number, after in enumerate((None, *ids)):
        question = CheckHost(
            cell=session.host.cell, host=session.host.host, number=1_000_000_000 + number, after=after
        )
        page = await session.page(question)
        listed = [each.instance for each in page.attempts]
        if listed != sorted(listed) or any(after is not None and each <= after for each in listed):
            raise RuleBroken(as_text(question), "instances in their order, all behind `after`", as_text(page))
        behind = await session.holds(after)
        missing = [each for each in ids[number:] if (each, 1) not in behind]
        if missing:
            raise RuleBroken(as_text(question), f"also {', '.join(map(str, missing))}", str(behind))


async def has_no_foreign_host(session: CheckSession) -> None:
    of = session.instance(structs.replace(session.host, host=ProviderId(uuid4()), share=None))
    mark = len(session.wire.heard)
    (line,) = await session.wire.send(of.spawn())

    def look(heard: Heard) -> str | None:
        match heard.message:
            case SpawnFailed(instance=of.instance):
                return ""
            case HostsNotHere(hosts=hosts) if of.on.host in hosts:
                return ""
            case message if isinstance(message, ANSWERS) and message.instance == of.instance:
                return str(heard)
            case _:
                return "" if heard.is_dead_letter_of(line) else None

    came = await session.until(look, mark)
    if came != "":
        session.strays.append(of.destroy())
        wanted = "host.not_here with this host, or spawn.failed, or the order as a dead letter"
        raise RuleBroken(as_text(of.spawn()), wanted, came or "neither")
    await session.must_live("an order for a host that it does not have")


async def survives_an_impossible_share(session: CheckSession) -> None:
    host = structs.replace(session.host, share=impossible_share(session.host.share_of_it))
    of = session.instance(host)
    expected = session.expect(of.spawn())

    def look(heard: Heard) -> bool | None:
        match heard.message:
            case InstanceSpawned(instance=of.instance) | SpawnFailed(instance=of.instance):
                return not heard.refused or None
            case _:
                return None

    if not await session.after(of.spawn(), look):
        raise RuleBroken(
            as_text(of.spawn()), f"spawn.failed with the reason, or {as_text(expected)}", "neither"
        )
    await session.must_live("a share that no host can give")


async def buries_no_json(session: CheckSession) -> None:
    line = NOT_JSON + f" {uuid4()}".encode()
    await _is_buried(session, line)


async def buries_unknown_orders(session: CheckSession) -> None:
    message = {"type": "explode", "cell": session.host.cell, "host": str(session.host.host)}
    line = msgspec.json.encode({"message": message, "id": f"check-{uuid4()}"})
    await _is_buried(session, line)


async def _is_buried(session: CheckSession, line: bytes) -> None:
    mark = len(session.wire.heard)
    await session.wire.send_lines([line], "spawn")
    sent = line.decode()
    if not await session.until(lambda heard: heard.is_dead_letter_of(line) or None, mark):
        raise RuleBroken(sent, "a dead letter", f"none in {session.limit_s:g} s")
    await session.must_live(sent)


async def reads_parcels(session: CheckSession) -> None:
    one, other = session.instance(), session.instance()
    mark = len(session.wire.heard)
    await session.wire.send(one.spawn(), other.spawn())
    for of in (one, other):
        await session.wait_for(of.spawn(), session.expect(of.spawn()), mark)


async def keeps_over_a_restart(session: CheckSession) -> None:
    runs, stopped, destroyed = session.instance(), session.instance(), session.instance()
    await session.obeyed(
        runs.spawn(), stopped.spawn(), stopped.stop(5), destroyed.spawn(), destroyed.destroy()
    )
    await session.restart()
    await session.must_hold(runs, 1)
    await session.must_hold(stopped, 1)
    await session.must_hold(destroyed)
    # The old order comes again, and one that is older than what was obeyed.
    await session.obeyed(runs.spawn(), stopped.start(4), stopped.start(5), destroyed.spawn())


async def reports_the_same_shape(session: CheckSession) -> None:
    before = session.report()
    mark = len(session.wire.heard)
    await session.restart()
    came = await session.until(lambda heard: report_of(heard, session.host.host), mark)
    wanted = f"inventory.report with {_shape_of(before) if before else 'the tree'}"
    if came is None:
        raise RuleBroken(session.restart_command, wanted, f"none in {session.limit_s:g} s")
    if before is not None and _shape_of(came) != _shape_of(before):
        raise RuleBroken(session.restart_command, wanted, str(_shape_of(came)))


def _shape_of(report: ReportInventory) -> Mapping[str, tuple[str, ...]]:
    """The resource classes of each provider, by its id."""
    return {str(each.id): tuple(sorted(each.inventories or {})) for each in report.providers}


async def answers_before_it_acknowledges(session: CheckSession) -> None:
    """Orders keep coming until the host is heard again: whenever the command kills the compute, some are under way."""
    is_back = asyncio.Event()
    under_way = [asyncio.create_task(_spawn_and_destroy_until(is_back, session)) for _ in range(UNDER_WAY)]
    try:
        # It has come to work when it has answered an order that was sent after these.
        await session.answered(session.instance().spawn())
        await session.restart()
        is_back.set()
        await asyncio.gather(*under_way)
    finally:
        for each in under_way:
            each.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def _spawn_and_destroy_until(is_back: asyncio.Event, session: CheckSession) -> None:
    while not is_back.is_set():
        of = session.instance()
        for order in (of.spawn(), of.destroy()):
            await session.answered(order, limit_s=RESTART_LIMITS * session.limit_s)


class Rule(Struct, frozen=True):
    """`needs` names the option without which the rule cannot be tried."""

    name: str
    says: str
    test: Test
    needs: str = ""


RULES = (
    Rule("report", "it reports the inventories of its host", reports),
    Rule("facts", "it tells what its host is", tells_facts),
    Rule("spawn", "it builds an instance, and lists it", obeys(lambda of: [of.spawn()], lists=[1])),
    Rule(
        "spawn again",
        "a repeated order gets the same answer and builds nothing",
        obeys(lambda of: [of.spawn(), of.spawn()], lists=[1]),
    ),
    Rule(
        "destroy",
        "it destroys an attempt, and answers again",
        obeys(destroy_twice, lists=[]),
    ),
    Rule("destroy unknown", "it confirms to destroy what it does not have", obeys(lambda of: [of.destroy()])),
    Rule("never again", "a destroyed attempt never runs", never_runs_again),
    Rule("stop and start", "it stops and starts an instance", obeys(stop_and_start)),
    Rule("numbers", "of orders that overtake each other, the later number counts", goes_by_numbers),
    Rule(
        "rebuild",
        "it builds an instance anew from another image",
        obeys(rebuild, lists=[1]),
    ),
    Rule("resize", "it takes over an instance on its own host", resizes),
    Rule(
        "stopped",
        "it builds and receives what does not run, and starts it",
        obeys(without_running),
    ),
    Rule("save", "it saves a stopped instance as an image", saves),
    Rule("refusals", "it refuses orders about what it does not have, and builds nothing", refuses),
    Rule(
        "receive",
        "it receives only what its source has and has stopped",
        receives_only_what_is_stopped,
    ),
    Rule("interrupted", "it obeys an order while it carries out another one", is_interrupted),
    Rule(
        "move",
        "it moves an instance to its other host, stopped and live",
        moves,
        "a second --host",
    ),
    Rule("host.check", "it lists its attempts in pages", lists),
    Rule("other host", "it refuses orders for a host that it does not have", has_no_foreign_host),
    Rule("share", "it answers an order whose share it cannot give", survives_an_impossible_share),
    Rule(
        "old share",
        "it obeys orders whose share is on providers that its host has no more",
        obeys(after_a_reshape),
    ),
    Rule("no JSON", "what is not JSON becomes a dead letter", buries_no_json),
    Rule(
        "unknown order",
        "an order that it does not know becomes a dead letter",
        buries_unknown_orders,
    ),
    Rule("parcel", "it obeys each of several orders in one parcel", reads_parcels),
    Rule("restart", "a restart changes nothing of what it has", keeps_over_a_restart, "--restart"),
    Rule(
        "same shape",
        "a restart reports the same providers by the same ids",
        reports_the_same_shape,
        "--restart",
    ),
    Rule(
        "restart between",
        "a restart in the middle loses no order and no answer",
        answers_before_it_acknowledges,
        "--restart",
    ),
    Rule("heartbeats", "it tells regularly that its host lives", lives),
)


# A report comes with the first facts, or not at all.
REPORT_S = 5.0
# A compute that was just started tells its hosts in this time.
SOON_S = 2.0


class CheckRequest(Struct, frozen=True):
    """What the command line asks for."""

    bus: str
    watch_bus: str
    cell: str
    hosts: tuple[str, ...]
    flavor: Flavor = Flavor(vcpus=1, ram_mb=64, root_gb=1)
    image: Image | None = None
    other_image: Image = Image(source="another")
    skipped: frozenset[str] = frozenset()
    # How long to wait for a host to tell its name, for an answer, and for a heartbeat.
    wait_s: float = 60.0
    limit_s: float = 30.0
    beat_s_max: float = 30.0
    # A command that restarts the compute.
    restart: str = ""


class RuleFinding(Struct, frozen=True, omit_defaults=True):
    """What became of one rule. `holds` is null if it was not tried, and `reason` says why."""

    rule: str
    says: str
    holds: bool | None = None
    reason: str = ""
    sent: str = ""
    expected: str = ""
    came: str = ""


class Outcome(Struct, frozen=True):
    cell: str
    hosts: tuple[str, ...]
    findings: tuple[RuleFinding, ...]
    # What could not be removed.
    left: tuple[str, ...]

    @property
    def is_well(self) -> bool:
        return not self.left and all(each.holds is not False for each in self.findings)


async def check(request: CheckRequest, tell: Callable[[RuleFinding], None]) -> Outcome:
    """Raises `CannotCheck` if the check cannot run at all."""
    try:
        async with opened_wire(request.bus, request.watch_bus, request.cell) as wire:
            return await _checked(wire, request, tell)
    except NotFound as missing:
        raise CannotCheck(
            f"{missing}: the broker lacks what cell {request.cell!r} needs; "
            f"`moor broker declare --cells {request.cell}` makes it"
        ) from missing
    except Operational as problem:
        raise CannotCheck(str(problem)) from problem


async def _checked(wire: Wire, request: CheckRequest, tell: Callable[[RuleFinding], None]) -> Outcome:
    if request.restart:
        await run_command(request.restart, request.limit_s)
    known = [await _known(wire, name, request) for name in request.hosts]
    hosts = [
        HostUnderCheck(request.cell, each, request.flavor, None, request.image, request.other_image)
        for each in known
    ]
    session = CheckSession(wire, hosts[0], request.limit_s, request.beat_s_max, request.restart)
    await wire.until(lambda heard: report_of(heard, hosts[0].host), REPORT_S)
    session.host = session.with_share(hosts[0])
    session.other = session.with_share(hosts[1]) if len(hosts) > 1 else None
    findings: list[RuleFinding] = []
    left: list[str] = []
    lost = ""
    try:
        for rule in RULES:
            finding = await _tried(rule, session, request, lost)
            findings.append(finding)
            tell(finding)
            left += await session.clean()
            if finding.holds is False and not lost and not await _answers(session):
                lost = f"not tried: since the rule {rule.name!r} the compute answers nothing"
    except BaseException:
        with suppress(Failure):
            await session.clean()
            await wire.drop_dead_letters()
        raise
    await wire.drop_dead_letters()
    return Outcome(request.cell, request.hosts, tuple(findings), tuple(left))


async def _known(wire: Wire, name: str, request: CheckRequest) -> ProviderId:
    def look(heard: Heard) -> ProviderId | None:
        return next((id_ for id_, known in hosts_of(heard).items() if name in (known, str(id_))), None)

    found = await wire.until(look, SOON_S)
    if found is None:
        print(
            f"waiting for host {name!r} of cell {request.cell!r}: start its compute now, or again",
            file=sys.stderr,
        )
        found = await wire.until(look, request.wait_s)
    if found is None:
        names: dict[ProviderId, str] = {}
        for each in wire.heard:
            names |= {
                id_: known for id_, known in hosts_of(each).items() if known != str(id_) or id_ not in names
            }
        heard = ", ".join(sorted(names.values())) or "no host"
        raise CannotCheck(
            f"host {name!r} of cell {request.cell!r} was not heard of in {request.wait_s:g} s ({heard} was). It tells its name "
            "when its compute starts: start it while this program waits, or name the host by its id, which its heartbeats tell"
        )
    return found


async def _tried(rule: Rule, session: CheckSession, request: CheckRequest, lost: str) -> RuleFinding:
    of = RuleFinding(rule.name, rule.says)
    if rule.name in request.skipped:
        return structs.replace(of, reason="skipped, as --skip says")
    if lost:
        return structs.replace(of, reason=lost)
    has = {"": True, "--restart": bool(request.restart), "a second --host": session.other is not None}
    if not has[rule.needs]:
        return structs.replace(of, reason=f"not tried: it needs {rule.needs}")
    try:
        await rule.test(session)
    except RuleBroken as broken:
        return structs.replace(of, holds=False, sent=broken.sent, expected=broken.expected, came=broken.came)
    return structs.replace(of, holds=True)


async def _answers(session: CheckSession) -> bool:
    try:
        await session.holds()
    except RuleBroken:
        return False
    return True
