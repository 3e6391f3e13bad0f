"""The end of the demo with real guests: what was seen is checked. Any problem ends the demo with exit code 1."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from bus.messages.build import InstanceState
from moor.client import NotDone
from moor.laboratory.demo.checking import print_end

# A killed guest is told by an event of libvirt; the rest of this time is for a machine that is busy.
STOPPED_S_MAX = 10.0


class GuestFindings(Struct):
    """What the demo has seen, by its steps.

    `wanted`, `found` and `defined` are the domains of each host: those of the active instances, those that run, and all.
    """

    console: Sequence[str] = ()
    stopped_s: float = 0.0
    started: InstanceState | None = None
    memory_kib: int = 0
    memory_kib_wanted: int = 0
    away: str = ""
    ran_on: bool = False
    elsewhere: str = ""
    waited: bool = False
    wanted: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    found: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    defined: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)


def conclude(seen: GuestFindings, problems: Sequence[str]) -> None:
    """Print what holds, or fail with all that does not."""
    print_end([*problems, *problems_of(seen)], checked(seen))


def why_not_done(failed: NotDone) -> str:
    """One of the reasons in full: all guests fail alike where QEMU does not work."""
    wrong = [each for each in failed.states if each.state not in ("active", "deleted")]
    if not wrong:
        return str(failed)
    first, *_ = wrong
    why = [first.reason, *[f"{each.host}: {each.reason}" for each in first.failures[-1:]]]
    return f"not done for {len(wrong)} of {len(failed.states)} guests, such as {first.name}: {'; '.join(filter(None, why))}"


def problems_of(seen: GuestFindings) -> list[str]:
    return [problem for problem, is_so in _problems(seen) if is_so]


def _problems(seen: GuestFindings) -> Iterator[tuple[str, bool]]:
    yield (
        f"the killed guest was seen only after {seen.stopped_s:.1f} s, must be within {STOPPED_S_MAX:g} s",
        seen.stopped_s > STOPPED_S_MAX,
    )
    state = seen.started.state if seen.started else "unknown"
    yield f"the killed guest was started again, and is {state}", state != "active"
    yield (
        f"the resized guest has {seen.memory_kib} KiB in libvirt, must have {seen.memory_kib_wanted}",
        seen.memory_kib != seen.memory_kib_wanted,
    )
    yield f"not all guests of {seen.away} ran on while its libvirtd was away", not seen.ran_on
    yield f"a guest was booted on {seen.away}, whose libvirtd was away", seen.elsewhere in ("", seen.away)
    yield f"a guest of {seen.away} was gone before its libvirtd came back", not seen.waited
    for host in sorted({*seen.wanted, *seen.found}):
        wanted, found = set(seen.wanted.get(host, ())), set(seen.found.get(host, ()))
        yield f"{host}: no domain runs for {', '.join(sorted(wanted - found))}", bool(wanted - found)
        yield f"{host}: no active instance has {', '.join(sorted(found - wanted))}", bool(found - wanted)
        off = set(seen.defined.get(host, ())) - found
        yield f"{host}: defined, but off: {', '.join(sorted(off))}", bool(off)
    yield "no guest runs", not any(seen.found.values())


def checked(seen: GuestFindings) -> Iterable[str]:
    running = sum(map(len, seen.found.values()))
    yield f"{running} active instances and {running} running domains on {len(seen.found)} hosts are the same, and no other is defined"
    yield f"the killed guest was stopped {seen.stopped_s:.1f} s later, and runs again"
    yield f"the resized guest has {seen.memory_kib:,} KiB in libvirt"
    yield f"while the libvirtd of {seen.away} was away, its guests ran on, a new one went to {seen.elsewhere}, and a delete waited"
    yield "the books of placement, the API level, the cells and their hosts agree"
