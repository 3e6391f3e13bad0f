"""The contract between a compute and its drivers. A new kind of hypervisor brings a driver, and nothing else changes.

A driver tells of inventories by `update_provider_tree`, as Nova's drivers do. But here trees are immutable: the driver gets
the known tree and returns an edited copy, and the compute reports the difference. A driver builds, moves and destroys
instances by orders: it begins the work, and is asked later how far the work is. Every driver must pass
tests/contracts/driver_contract.py; laboratory/computes/driver.py has the one of the simulated hosts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from compute_sim.core.attempts import AttemptRecord, Condition, HostOrder, Work
from compute_sim.core.hosts import Host
from compute_sim.core.trees import Allocations, CannotReshape, ProviderTree
from engine.inventories import ProviderId


class Reported(Protocol):
    """Has a provider tree that its compute reports: a host, or a pool that shares with hosts."""

    @property
    def root(self) -> ProviderId:
        """The id of the root provider; it never changes."""

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:
        """The tree as it is now. If nothing has changed, a call with an earlier result returns an equal tree."""

    def condition(self, at_s: float) -> Condition:
        """How the host or pool is at this time: well; silent, so that its messages do not arrive; or dead."""


class GuestStopped(Struct, frozen=True):
    """A guest that should run does not: it ended, or somebody stopped it. `why` is for people."""

    attempt: AttemptRecord
    why: str


class ConsoleText(Struct, frozen=True):
    """A part of what a guest has written to its serial console, from the byte `start` on. `size` is how much it has
    written in all.
    """

    text: bytes
    start: int
    size: int


class NoConsole(Exception):  # noqa: N818 - an answer, and the text says why
    """There is no console to read; the text says why."""


class Driver(Reported, Protocol):
    """Controls one host. No method may block, by a file of a disk that may hang either: long work goes on outside of them. `at_s` is
    the compute's clock.
    """

    @property
    def host(self) -> Host:
        """The host's description."""

    def reshape(
        self, known: ProviderTree, new: ProviderTree, allocations: Allocations
    ) -> Allocations | CannotReshape:
        """Which provider of the new tree gives what to each consumer, now that the host has another shape. It is called if an
        inventory of the known tree, which placement has, is in use and the new tree lacks it. `allocations` is all that is held
        of the known tree, by consumer: instances, and what moves and cleanups hold beside them.

        The answer has the same consumers, and the same sum of each class for each of them. Placement writes it together with
        the new tree, or nothing. If it is written, `reshaped` follows. If a consumer claimed or released something meanwhile,
        `reshape` is called again. compute_sim/core/trees.py has the usual answer, `first_fit`.
        """

    def reshaped(self, allocations: Allocations) -> None:
        """Placement has written the driver's answer to `reshape`: from now on these consumers hold this.

        Later orders about these instances may still name the providers that they were claimed on. If the process dies before
        this call, the call does not come. So a driver that keeps places stores its answer to `reshape` before it returns it,
        and takes it as written when the next report of the new tree is accepted.
        """

    def next_change_s(self, at_s: float) -> float | None:
        """The time after `at_s` at which the tree changes by itself, so that it is asked for again; None if never."""

    def metrics(self, at_s: float) -> Mapping[str, float]:
        """Measurements of the host by the names that weights of the scheduler use. If they are empty, none are sent."""

    def images(self) -> Sequence[str]:
        """The images that the host has cached, by their sources, at most 64: it builds sooner from these."""

    def wake_with(self, wake: Callable[[ProviderId], None]) -> None:
        """Call `wake` with the host's id, on the event loop, when the work of an attempt has ended or a guest has stopped: then
        the compute looks at once, and not only when its time is over. A driver whose work ends at the times that it named needs not.
        """

    def stopped(self, running: Iterable[AttemptRecord]) -> Sequence[GuestStopped]:
        """Those of these attempts whose guests should run and do not, as far as the driver knows without asking now."""

    def why_broken(self, attempt: AttemptRecord) -> str:
        """Why the guest of this attempt could not be started again, such as a file of its disk that is gone; empty if nothing is known
        to be wrong. It is what the driver has seen last: an audit asks for all attempts.
        """

    async def console(self, attempt: AttemptRecord, start: int, limit: int) -> ConsoleText:
        """At most `limit` bytes of the console of this attempt from the byte `start` on; of a negative one, that many bytes before the
        end. Raises `NoConsole`.
        """

    def begin(self, order: HostOrder, at_s: float) -> Work:
        """Begin the work that this order asks for. core/attempts.py says when; it is called once for an attempt to build or to
        receive an instance.

        SpawnInstance     Build the instance, and run it unless the order says `stopped`.
        ReceiveInstance   Take the instance over from its source, which may be this host, and run it unless the order says `stopped`. If
                          the work fails, nothing of the attempt is left here, and the source is as before. With `live`, it runs
                          on meanwhile; a driver that cannot do so fails, and says why.
        StopInstance      Stop the instance, even while it is being started. If the work fails, the instance runs on. With
                          `save_as`, also save it as this image, even if it is stopped already. If that fails, it stays stopped.
        StartInstance     Run the instance again, even while it is being stopped. If the work fails, it stays stopped.
        RespawnInstance   Destroy the instance's disk and build it anew, whatever is being done to it. If the work fails,
                          nothing runs, and the host keeps the attempt.
        AdoptGuest        The host has the guest of the instance already, by another cloud: it is this attempt from now on. Do not
                          touch it. Fail if there is no such guest.
        LeaveGuest        Forget the attempt, and leave its guest as it is: another cloud has it. It may be repeated.
        DestroyInstance   Remove all of the attempt, whatever is being done to it, and even if it is unknown here. It may be
                          repeated.
        """

    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:
        """How far the work for an attempt is. The compute asks when the time that the last `Work` named is over, and after
        a restart of its process.
        """
