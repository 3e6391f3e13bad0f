"""The fault script: which faults happen, on which hosts, when, and how likely; and their effect on one host now.

Random choices are derived from the script's seed and their subject (fault, host, attempt). So the same hosts are bad
and the same builds fail, whatever the order of events, and also after a restart.

As a TOML file (JSON is possible, too; laboratory/ironic/script.py has the faults of an Ironic):

    seed = 7
    spawn_ms = 50.0

    [[faults]]                  # one build in twenty fails, on any host
    is = "fails_to_build"
    probability = 0.05

    [[faults]]                  # a tenth of the hosts is silent for a minute, every ten minutes
    is = "falls_silent"
    share = 0.1
    after_s = 60
    for_s = 60
    every_s = 600

    [[faults]]                  # one host loses half of its CPUs for good
    is = "changes"
    hosts = ["c1-host-00007"]
    after_s = 30
    vcpus = -16

    [[faults]]                  # and another one is hot for ten minutes, as its metrics tell
    is = "changes"
    hosts = ["c1-host-00008"]
    after_s = 30
    for_s = 600
    metrics = { temperature = 95.0 }

    [[faults]]                  # no instance arrives on a host for five minutes
    is = "fails_to_receive"
    hosts = ["c1-host-00009"]
    for_s = 300

Others: fails_to_stop, fails_to_start (reason, probability, as the two above); builds_slowly (spawn_ms, probability),
receives_slowly (receive_ms), stops_slowly (stop_ms), starts_slowly (start_ms); comes_back_late, dies. A script
may also have receive_ms, stop_ms and start_ms.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from bus.messages.cell import ReceiveInstance, RespawnInstance, SpawnInstance, StartInstance, StopInstance
from compute_sim.core.attempts import WELL, Condition, Dead, Silent, Work
from engine.inventories import Trait, Value, Variant

T = TypeVar("T")


class TimedFault(Variant, frozen=True, kw_only=True):
    """A fault that is active for `for_s` seconds, from `after_s` after the start of the process, and again every `every_s`.

    If `for_s` is 0, the fault never ends; if `every_s` is 0, it comes only once.
    """

    after_s: float = 0.0
    for_s: float = 0.0
    every_s: float = 0.0

    def __post_init__(self) -> None:
        for field in ("share", "probability"):
            if not 0 <= (value := getattr(self, field, 1.0)) <= 1:
                raise ValueError(f"{field} is {value}, must be 0..1")
        if min(self.after_s, self.for_s, self.every_s) < 0:
            raise ValueError(
                f"after_s, for_s and every_s are {self.after_s}, {self.for_s} and {self.every_s}, must not be negative"
            )
        if self.every_s and not 0 < self.for_s < self.every_s:
            raise ValueError(
                f"for_s is {self.for_s}, must be more than 0 and less than every_s ({self.every_s})"
            )


class SharedFault(TimedFault, frozen=True, kw_only=True):
    """A fault that affects only a share of the hosts or nodes that it is meant for."""

    share: float = 1.0


class HostFault(SharedFault, frozen=True, kw_only=True):
    """A fault of hosts whose name matches one of the patterns."""

    hosts: tuple[str, ...] = ("*",)


class WorkFault(HostFault, frozen=True, kw_only=True):
    """A fault that affects, with this probability, work that begins while the fault is active."""

    probability: float = 1.0


class FailsToBuild(WorkFault, frozen=True, kw_only=True, tag="fails_to_build"):
    """Builds fail, and are cleaned up. Rebuilds fail, too, and leave nothing that runs."""

    reason: str = "the hypervisor could not start it"


class FailsToReceive(WorkFault, frozen=True, kw_only=True, tag="fails_to_receive"):
    """Instances do not arrive from other hosts; what had arrived is cleaned up."""

    reason: str = "the source did not send it"


class FailsToStop(WorkFault, frozen=True, kw_only=True, tag="fails_to_stop"):
    """Instances cannot be stopped, and run on."""

    reason: str = "the hypervisor could not stop it"


class FailsToStart(WorkFault, frozen=True, kw_only=True, tag="fails_to_start"):
    """Stopped instances cannot be started again, and stay stopped."""

    reason: str = "the hypervisor could not start it again"


class BuildsSlowly(WorkFault, frozen=True, kw_only=True, tag="builds_slowly"):
    """Builds and rebuilds take `spawn_ms`."""

    spawn_ms: float


class ReceivesSlowly(WorkFault, frozen=True, kw_only=True, tag="receives_slowly"):
    """Instances take `receive_ms` to arrive from another host."""

    receive_ms: float


class StopsSlowly(WorkFault, frozen=True, kw_only=True, tag="stops_slowly"):
    """Instances take `stop_ms` to stop."""

    stop_ms: float


class StartsSlowly(WorkFault, frozen=True, kw_only=True, tag="starts_slowly"):
    """Stopped instances take `start_ms` to start again."""

    start_ms: float


class FallsSilent(HostFault, frozen=True, kw_only=True, tag="falls_silent"):
    """The host receives orders and works, but cannot send: answers during this time are lost, and heartbeats stop."""


class ComesBackLate(HostFault, frozen=True, kw_only=True, tag="comes_back_late"):
    """The host receives orders and works, but cannot send; its answers are kept, and sent when this time ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.for_s:
            raise ValueError("comes_back_late: for_s must be more than 0; for no end use falls_silent")


class Dies(HostFault, frozen=True, kw_only=True, tag="dies"):
    """The host is lost for good, with everything on it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.for_s or self.every_s:
            raise ValueError("dies: for_s and every_s must be 0, since a dead host does not come back")


class Changes(HostFault, frozen=True, kw_only=True, tag="changes"):
    """The host's inventory, shape, traits or metrics differ while the fault is active."""

    vcpus: int = 0
    # So many NUMA nodes below it have its CPUs and memory; 0: the host itself has them.
    numa_nodes: int | None = None
    ram_mb: int = 0
    disk_gb: int = 0
    traits_gained: tuple[Trait, ...] = ()
    traits_lost: tuple[Trait, ...] = ()
    metrics: dict[str, float] = {}


Fault = (
    FailsToBuild
    | BuildsSlowly
    | FailsToReceive
    | ReceivesSlowly
    | FailsToStop
    | StopsSlowly
    | FailsToStart
    | StartsSlowly
    | FallsSilent
    | ComesBackLate
    | Dies
    | Changes
)


class FaultScript(Value, frozen=True):
    """The faults of a run, and how long it takes to build, receive, stop and start an instance without them."""

    seed: int = 0
    spawn_ms: float = 50.0
    receive_ms: float = 50.0
    stop_ms: float = 20.0
    start_ms: float = 20.0
    faults: tuple[Fault, ...] = ()


WorkOrder = SpawnInstance | ReceiveInstance | StopInstance | StartInstance | RespawnInstance


class WorkKind(Struct, frozen=True):
    """The parts of a fault script that are about the work for one kind of order.

    `time` is the field with the duration of the work, in the script and in faults of the type `slows`. `fails` is the type
    of the faults that let the work fail. Random choices are derived from `name`, among others.
    """

    name: str
    time: str
    fails: type[FailsToBuild | FailsToReceive | FailsToStop | FailsToStart]
    slows: type[BuildsSlowly | ReceivesSlowly | StopsSlowly | StartsSlowly]


KINDS: dict[type[WorkOrder], WorkKind] = {
    SpawnInstance: WorkKind("build", "spawn_ms", FailsToBuild, BuildsSlowly),
    ReceiveInstance: WorkKind("receive", "receive_ms", FailsToReceive, ReceivesSlowly),
    StopInstance: WorkKind("stop", "stop_ms", FailsToStop, StopsSlowly),
    RespawnInstance: WorkKind("rebuild", "spawn_ms", FailsToBuild, BuildsSlowly),
    StartInstance: WorkKind("start", "start_ms", FailsToStart, StartsSlowly),
}


def faults_of(script: FaultScript, host: str) -> tuple[Fault, ...]:
    """The faults that affect this host."""
    return tuple(
        [
            fault
            for number, fault in enumerate(script.faults)
            if any(fnmatchcase(host, pattern) for pattern in fault.hosts)
            and happens(fault.share, script.seed, f"host {number} {host}")
        ]
    )


def condition_of(faults: Sequence[Fault], at_s: float) -> Condition:
    """The worst active condition of a host with these faults."""
    silent: Condition = WELL
    for fault in faults:
        match fault:
            case Dies() if is_on(fault, at_s):
                return Dead()
            case FallsSilent() if is_on(fault, at_s):
                silent = Silent()
            case ComesBackLate() if is_on(fault, at_s) and silent == WELL:
                silent = Silent(until_s=next_turn_s(fault, at_s))
            case _:
                pass
    return silent


def work_of(
    script: FaultScript, kind: WorkKind, faults: Sequence[WorkFault], order: WorkOrder, at_s: float
) -> Work:
    """How long the work for this order takes on a host with these faults, and why it fails, if it does."""
    takes_ms, failure = getattr(script, kind.time), ""
    # An attempt may be rebuilt often.
    which = order.number if isinstance(order, RespawnInstance) else order.attempt
    for number, fault in enumerate(faults):
        about = f"{kind.name} {number} {order.instance.int:x} {which}"
        if not is_on(fault, at_s) or not happens(fault.probability, script.seed, about):
            continue
        if isinstance(fault, kind.fails):
            failure = failure or fault.reason
        else:
            takes_ms = max(takes_ms, getattr(fault, kind.time))
    return Work(takes_ms, failure)


def is_on(fault: TimedFault, at_s: float) -> bool:
    if not fault.after_s and not fault.for_s:
        return True
    since, for_, every = _us(at_s) - _us(fault.after_s), _us(fault.for_s), _us(fault.every_s)
    if since < 0:
        return False
    return not for_ or (since % every if every else since) < for_


def next_turn_s(fault: TimedFault, at_s: float) -> float | None:
    """When the fault begins or ends next, after `at_s`; None if never."""
    after, for_, every = _us(fault.after_s), _us(fault.for_s), _us(fault.every_s)
    since = _us(at_s) - after
    if since < 0:
        return after / 1e6
    if not for_:
        return None
    begins = since // every * every if every else 0
    if since < begins + for_:
        return (after + begins + for_) / 1e6
    return (after + begins + every) / 1e6 if every else None


def _us(seconds: float) -> int:
    """The time in whole microseconds, so that sums and differences of times are exact.

    With floats, the moment at which a fault begins or ends could be computed as just before it. Then the next change
    after that moment would be the same moment again, for ever.
    """
    return round(seconds * 1e6)


def happens(probability: float, seed: int, about: str) -> bool:
    if probability >= 1:
        return True
    digest = blake2b(f"{seed} {about}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < probability * 2.0**64


class BadScript(ValueError):  # noqa: N818 - named for what it is
    """The file is not a valid fault script; the message names the wrong field."""


def load_script(path: Path, kind: type[T]) -> T:
    decode = msgspec.toml.decode if path.suffix == ".toml" else msgspec.json.decode
    try:
        return decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as problem:
        raise BadScript(f"fault script {path}: {problem}") from problem
