"""Runs the rules against one compute, one after another, and collects what became of each."""

import sys
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct, structs

from engine.flavors import Flavor, Image
from engine.inventories import ProviderId
from kit.errors import Failure, NotFound, Operational
from laboratory.check.orders import HostUnderCheck
from laboratory.check.rules import RULES, Rule
from laboratory.check.session import (
    CannotCheck,
    CheckOptions,
    CheckSession,
    RuleBroken,
    Wire,
    host_named,
    hosts_heard,
    opened_wire,
    run_command,
    with_share,
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
    wait_s: float = 60.0
    options: CheckOptions = CheckOptions()


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
    if request.options.restart:
        await run_command(request.options.restart, request.options.limit_s)
    known = [await _known(wire, name, request) for name in request.hosts]
    hosts = [
        HostUnderCheck(request.cell, each, request.flavor, None, request.image, request.other_image)
        for each in known
    ]
    session = CheckSession(wire, hosts[0], request.options)
    await wire.until(session.report, REPORT_S)
    session.host = with_share(wire, hosts[0])
    session.other = with_share(wire, hosts[1]) if len(hosts) > 1 else None
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
    found = await wire.until(lambda: host_named(wire, name), SOON_S)
    if found is None:
        print(
            f"waiting for host {name!r} of cell {request.cell!r}: start its compute now, or again",
            file=sys.stderr,
        )
        found = await wire.until(lambda: host_named(wire, name), request.wait_s)
    if found is None:
        heard = ", ".join(sorted(hosts_heard(wire).values())) or "no host"
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
    has = {"": True, "--restart": bool(request.options.restart), "a second --host": session.other is not None}
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
