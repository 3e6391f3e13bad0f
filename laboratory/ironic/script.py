"""The fault script of a simulated Ironic: which faults happen, on which nodes, when, and how likely.

Random choices are derived from the script's seed and their subject (fault, node, how often it was asked). So the same
nodes fail in each run, whatever the order of events. As a TOML file:

    seed = 7

    [[faults]]                  # one deploy in twenty fails
    is = "work_fails"
    work = "deploy"
    probability = 0.05

    [[faults]]                  # a fifth of the `*.end` notifications is never published
    is = "loses"
    event_types = ["*.end"]
    probability = 0.2

    [[faults]]                  # nothing is published for ten seconds of each minute
    is = "loses"
    event_types = ["*"]
    after_s = 30
    for_s = 10
    every_s = 60

    [[faults]]                  # the BMC of each hundredth node is silent for five minutes
    is = "bmc_silent"
    share = 0.01
    for_s = 300

    [[faults]]                  # the API is down for a minute
    is = "away"
    after_s = 120
    for_s = 60
    refuses = true

Others: doubles, delays (late_s), node_locked.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Literal, TypeVar

from msgspec import Struct

from engine.inventories import Value
from laboratory.computes.faults import SharedFault, TimedFault, happens, is_on

Work = Literal[
    "verify",
    "inspect",
    "adopt",
    "rescue",
    "unrescue",
    "deploy",
    "tear down",
    "clean",
    "power",
]


class NodeFault(SharedFault, frozen=True, kw_only=True):
    """A fault of nodes whose name or uuid matches one of the patterns in `nodes`.

    While it is active, it happens with `probability` each time that the script is asked.
    """

    nodes: tuple[str, ...] = ("*",)
    probability: float = 1.0


class WorkFails(NodeFault, frozen=True, kw_only=True, tag="work_fails"):
    """The conductor's work on the node fails."""

    work: Work
    reason: str = "scripted failure"


class BmcSilent(NodeFault, frozen=True, tag="bmc_silent"):
    """The node's BMC does not answer: power orders and verifying fail, and the power sync sets maintenance."""


class NodeLocked(NodeFault, frozen=True, tag="node_locked"):
    """Orders for the node are answered with 409, as while a periodic task of the conductor holds its lock."""


class Loses(NodeFault, frozen=True, kw_only=True, tag="loses"):
    """Notifications whose type matches one of `event_types`, such as `*.end`, are never published."""

    event_types: tuple[str, ...] = ("*.end",)


class Doubles(NodeFault, frozen=True, tag="doubles"):
    """A notification is published twice."""


class Delays(NodeFault, frozen=True, kw_only=True, tag="delays"):
    """A notification is published `late_s` later."""

    late_s: float


class Away(TimedFault, frozen=True, kw_only=True, tag="away"):
    """The API is down: it answers 503, or takes no connections."""

    refuses: bool = False


IronicFault = WorkFails | BmcSilent | NodeLocked | Loses | Doubles | Delays | Away


class IronicScript(Value, frozen=True):
    seed: int = 0
    faults: tuple[IronicFault, ...] = ()


F = TypeVar("F", bound=NodeFault)


class Subject(Struct, frozen=True):
    """The subject of one random choice: the node, the time, and how often the script was asked about it before."""

    name: str | None
    uuid: str
    since_s: float
    count: int


def why_work_fails(script: IronicScript, work: str, about: Subject) -> str:
    return next((fault.reason for fault in happening(script, WorkFails, about) if fault.work == work), "")


def publishings(script: IronicScript, event_type: str, about: Subject) -> tuple[float, ...]:
    """The delays after which a notification is published, one for each time; empty if it is lost."""
    lost = (pattern for fault in happening(script, Loses, about) for pattern in fault.event_types)
    if any(fnmatchcase(event_type, pattern) for pattern in lost):
        return ()
    late_s = max((fault.late_s for fault in happening(script, Delays, about)), default=0.0)
    return (late_s,) * (1 + any(happening(script, Doubles, about)))


def away(script: IronicScript, since_s: float) -> Away | None:
    return next((each for each in script.faults if isinstance(each, Away) and is_on(each, since_s)), None)


def happening(script: IronicScript, kind: type[F], about: Subject) -> Iterator[F]:
    """The faults of a kind that happen to the node now."""
    for number, fault in enumerate(script.faults):
        if (
            isinstance(fault, kind)
            and is_on(fault, about.since_s)
            and any(
                fnmatchcase(about.uuid, pattern) or fnmatchcase(about.name or "", pattern)
                for pattern in fault.nodes
            )
            and happens(fault.share, script.seed, f"node {number} {about.uuid}")
            and happens(fault.probability, script.seed, f"time {number} {about.uuid} {about.count}")
        ):
            yield fault
