"""The driver of a host with libvirt (a `Driver`): the loop asks it, and threads do the work.

Work ends when its thread says so, and the compute is woken then. After a restart of the process the orders are in the folders of the
attempts: work that was begun is done again, from its beginning.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from bus.messages.cell import (
    AdoptGuest,
    DestroyInstance,
    LeaveGuest,
    ReceiveInstance,
    RespawnInstance,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from compute_sim.core.attempts import (
    WELL,
    AttemptRecord,
    AttemptState,
    Condition,
    HostOrder,
    Silent,
    Work,
    begun,
)
from compute_sim.core.hosts import Host
from compute_sim.core.trees import Allocations, CannotReshape, ProviderTree, first_fit
from compute_sim.drivers import ConsoleText, GuestStopped, NoConsole
from compute_sim.libvirt.core.domains import bound_guests
from compute_sim.libvirt.core.machine import BadXmlError
from compute_sim.libvirt.disks import read_console
from compute_sim.libvirt.guest_domains import GuestDomains
from compute_sim.libvirt.guest_folders import DOWNLOADING, GuestDisks, GuestFolder, GuestFolders
from compute_sim.libvirt.guest_work import GuestWork
from compute_sim.libvirt.hypervisor import AttemptName, HostView, Hypervisor
from compute_sim.libvirt.images import CachedImages
from compute_sim.libvirt.settings import LibvirtHost, LibvirtRules
from compute_sim.libvirt.work import (
    AGAIN_S,
    WAITING,
    AtStep,
    GivenUp,
    LibvirtAway,
    RunsOn,
    Turn,
    WorkFailed,
    WorkQueues,
    in_words,
    until_done,
)
from engine.flavors import InstanceId
from engine.inventories import ProviderId

log = logging.getLogger(__name__)

# How long the compute waits at most before it looks at work: it is woken when the work ends.
BUSY = Work(1000.0, needs_order=True)
# How long the end of the process waits for work and for a look. What goes on then is done again by the next process.
END_S = 10.0
# The pause between a change and the look for it: further changes of a burst are seen by the same look.
SETTLE_S = 0.05
# So many failed builds can be asked for again, until the store has saved that they failed.
FAILED_KEPT_MAX = 100


class _Job:
    """A piece of work. `is_useless` is set if a later order for the attempt has come that needs it not."""

    def __init__(self, *, builds: bool) -> None:
        self.builds = builds
        self.is_useless = threading.Event()
        self.is_done = False
        self.failure = ""
        self.runs_on = False


class LibvirtDriver:
    def __init__(
        self,
        host: LibvirtHost,
        settings: LibvirtRules,
        images: CachedImages,
        peers: dict[ProviderId, GuestWork] | None = None,
        at_step: Callable[[str], None] = lambda _: None,
        *,
        cell: str = "",
    ) -> None:
        """`peers` has the work of all hosts of this compute, and gets this one's. `at_step` is called before each step."""
        self.root = host.root
        self._named = host
        self._settings = settings
        self._images = images
        self._at_step = at_step
        self.view = HostView(host, settings, cell)
        self._must_look = threading.Event()
        self._hypervisor = Hypervisor(host.uri, self._must_look.set)
        self._folders = GuestFolders(settings.folder, host.name)
        peers = {} if peers is None else peers
        domains = GuestDomains(self._hypervisor, self.view, settings)
        self._work = GuestWork(domains, self._folders, GuestDisks(images), peers)
        peers[host.root] = self._work
        self._queues = WorkQueues(settings.work_at_once_max, f"work {host.name}")
        self._jobs: dict[AttemptName, _Job] = {}
        # Those that failed, and whose attempts nobody destroys.
        self._failed: dict[AttemptName, _Job] = {}
        self._lock = threading.Lock()
        self._looking = threading.Thread(target=self._look_on, name=f"look {host.name}", daemon=True)
        self._is_known = threading.Event()
        self._closing = threading.Event()
        self._why_not_seen = ""
        # The program or folder that the look waits for now, and since when.
        self._looks_at: tuple[str, float] | None = None
        self._away_since_s: float | None = None
        self._wake: Callable[[ProviderId], None] = lambda _: None
        self._loop: asyncio.AbstractEventLoop | None = None

    # Its life

    def open(self) -> None:
        """Prepare the folders, and begin to look at the host. Raises OSError if a folder cannot be made."""
        self._images.begin()
        self._folders.begin()
        self._looking.start()

    def wait_until_known(self, timeout_s: float) -> bool:
        """Wait until the host was seen for the first time. Returns whether it was."""
        return self._is_known.wait(timeout_s)

    @property
    def why_not_seen(self) -> str:
        """Why the last look at the host has failed, or does not end; empty if the host is seen."""
        what, hangs_s = self._hanging_look()
        if hangs_s:
            return f"{what} has not answered for {hangs_s:.0f} s"
        return self._why_not_seen or self._hypervisor.why_away

    def _hanging_look(self) -> tuple[str, float]:
        """The program or folder that the look waits for, and how long if that is longer than `away_s`, else 0."""
        what, since_s = self._looks_at or ("", time.monotonic())
        waits_s = time.monotonic() - since_s
        return what, waits_s if waits_s >= self._settings.away_s else 0.0

    def close(self) -> None:
        """End the work: what goes on gives up at its next step, and a successor of this process does it again."""
        self._closing.set()
        self._must_look.set()
        if not self._queues.close(END_S):
            log.warning(
                "host %s: work that hangs is left, and done again after the next start", self._named.name
            )
        if self._looking.ident is not None:
            self._looking.join(END_S)
        if not self._looking.is_alive():
            self._hypervisor.close()

    # What it tells

    @property
    def host(self) -> Host:
        return self.view.host

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:  # noqa: ARG002 - the last look counts
        return self.view.tree(tree)

    def reshape(
        self, known: ProviderTree, new: ProviderTree, allocations: Allocations
    ) -> Allocations | CannotReshape:
        """Guests that float over the host get a cell in the books. Those that are bound to CPUs, pages or cells stay where they are,
        so the host keeps its shape until they have left.
        """
        return bound_guests(new, allocations, self.view.celled()) or first_fit(known, new, allocations)

    def reshaped(self, allocations: Allocations) -> None:
        """The domains of guests that float stay as they are."""

    def condition(self, at_s: float) -> Condition:
        if not self.why_not_seen:
            self._away_since_s = None
            return WELL
        if self._away_since_s is None:
            self._away_since_s = at_s - self._hanging_look()[1]
        if at_s - self._away_since_s < self._settings.away_s:
            return WELL
        # Answers wait until then: nobody else would ever tell that a guest has stopped.
        return Silent(until_s=at_s + AGAIN_S)

    def next_change_s(self, at_s: float) -> float | None:
        return at_s + self._settings.look_every_s

    def metrics(self, at_s: float) -> Mapping[str, float]:  # noqa: ARG002 - it measures nothing
        return {}

    def images(self) -> Sequence[str]:
        return self._images.sources()

    def wake_with(self, wake: Callable[[ProviderId], None]) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), wake

    def stopped(self, running: Iterable[AttemptRecord]) -> Sequence[GuestStopped]:
        found = []
        for each in running:
            name = _name(each.instance, each.attempt)
            job = self._jobs.get(name)
            if (job is None or job.is_done) and (why := self.view.why_off(name)):
                found.append(GuestStopped(each, why))
        return found

    def why_broken(self, attempt: AttemptRecord) -> str:
        name = _name(attempt.instance, attempt.attempt)
        job = self._jobs.get(name)
        # Work that goes on makes and removes files.
        return self.view.why_broken(name) if job is None or job.is_done else ""

    async def console(self, attempt: AttemptRecord, start: int, limit: int) -> ConsoleText:
        folder = self._folders.of(attempt.instance, attempt.attempt)
        return await asyncio.to_thread(self._console, folder, start, limit)

    def _console(self, folder: GuestFolder, start: int, limit: int) -> ConsoleText:
        try:
            try:
                return read_console(folder.console, start, limit)
            except PermissionError:
                return self._work.domains.console(folder, start, limit)
        except (WorkFailed, LibvirtAway, OSError) as failed:
            raise NoConsole(f"its console cannot be read: {in_words(failed)}") from failed

    def has(self, cell: str) -> list[AttemptRecord]:
        """All attempts that the host has something of, by their folders and their domains. Work that has not ended is asked for at once."""
        folders = [(each.instance, each.attempt) for each in self._folders]
        return [self._record_of(cell, *each) for each in sorted({*folders, *self.view.ours()})]

    def _record_of(self, cell: str, instance: InstanceId, attempt: int) -> AttemptRecord:
        try:
            unfinished = self._folders.of(instance, attempt).unfinished()
        except WorkFailed as failed:
            # It counts as it runs, and its files stay: the other attempts must be found.
            log.error("host %s: an attempt may be half done: %s", self._named.name, failed)  # noqa: TRY400 - it says what is wrong
            unfinished = None
        if unfinished is not None:
            return begun(unfinished, BUSY, 0.0)
        runs = self.view.runs(_name(instance, attempt))
        return AttemptRecord(
            cell=cell,
            host=self.root,
            instance=instance,
            attempt=attempt,
            state=AttemptState.BUILT if runs else AttemptState.STOPPED,
        )

    # Orders

    def begin(self, order: HostOrder, at_s: float) -> Work:  # noqa: ARG002 - threads have their own time
        builds = isinstance(order, SpawnInstance | ReceiveInstance | RespawnInstance)
        # What is being built is built first, and started or stopped after that.
        ends_builds = isinstance(order, RespawnInstance | DestroyInstance)
        work = self._work_of(order)
        return self._submit(order.instance, order.attempt, work, builds=builds, ends_builds=ends_builds)

    def _work_of(  # noqa: PLR0911 - one for each order
        self, order: HostOrder
    ) -> Callable[[AtStep], None]:
        match order:
            case SpawnInstance():
                return partial(self._work.spawn, order)
            case ReceiveInstance():
                return partial(self._work.receive, order)
            case RespawnInstance():
                return partial(self._work.respawn, order)
            case AdoptGuest():
                return partial(self._work.adopt, order)
            case StopInstance():
                return partial(self._work.stop, order.instance, order.attempt, order.save_as, order.project)
            case StartInstance():
                return partial(self._work.start, order.instance, order.attempt)
            case LeaveGuest():
                return self._until_done("leaving", partial(self._work.leave, order.instance, order.attempt))
            case DestroyInstance():
                destroy = partial(
                    self._work.destroy, order.instance, order.attempt, saved_until=order.saved_until
                )
                return self._until_done("destroy", destroy)

    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:  # noqa: ARG002 - threads have their own time
        name = _name(attempt.instance, attempt.attempt)
        job = self._jobs.get(name)
        if job is None:
            work = self._again(attempt)
            if work is None:
                return Work(failure=attempt.failure)
            return self._submit(attempt.instance, attempt.attempt, work, builds=attempt.state.takes_slot)
        if not job.is_done:
            return BUSY
        if attempt.state is AttemptState.DESTROYED:
            self._forget(name, job)
        elif job.failure and attempt.state in (AttemptState.BUILDING, AttemptState.RECEIVING):
            self._failed[name] = job
            if len(self._failed) > FAILED_KEPT_MAX:
                oldest = next(iter(self._failed))
                self._forget(oldest, self._failed[oldest])
        return Work(failure=job.failure, runs_on=job.runs_on)

    def _forget(self, name: AttemptName, job: _Job) -> None:
        """Forget the outcome of a job whose attempt is gone. If the outcome could not be saved, the work begins anew."""
        self._failed.pop(name, None)
        if self._jobs.get(name) is job:
            del self._jobs[name]
            self.view.forget(name)

    def _again(self, attempt: AttemptRecord) -> Callable[[AtStep], None] | None:
        """The work of this attempt once more, since the process that began it has ended; None if it has ended."""
        order, runs = attempt.begun_order, self.view.runs(_name(attempt.instance, attempt.attempt))
        match attempt.state:
            case _ if runs and isinstance(order, SpawnInstance | RespawnInstance):
                return partial(self._work.go_on, order)
            case _ if order is not None:
                return self._work_of(order)
            case AttemptState.BUILDING | AttemptState.RECEIVING | AttemptState.REBUILDING:
                return partial(self._never_begun, attempt)
            case AttemptState.STARTING:
                return partial(self._work.start, attempt.instance, attempt.attempt)
            case AttemptState.DESTROYED if attempt.is_left:
                return self._until_done(
                    "leaving", partial(self._work.leave, attempt.instance, attempt.attempt)
                )
            case _:
                return None

    def _never_begun(self, attempt: AttemptRecord, at_step: AtStep) -> None:
        self._work.destroy(attempt.instance, attempt.attempt, at_step)
        raise WorkFailed("the compute has ended before it had begun the work")

    def _until_done(self, what: str, try_: Callable[[AtStep], None]) -> Callable[[AtStep], None]:
        return lambda at_step: until_done(
            f"host {self._named.name}: the {what} of an attempt", partial(try_, at_step), at_step
        )

    def _submit(
        self,
        instance: InstanceId,
        attempt: int,
        work: Callable[[AtStep], None],
        *,
        builds: bool,
        ends_builds: bool = False,
    ) -> Work:
        name = _name(instance, attempt)
        with self._lock:
            before, job = self._jobs.get(name), _Job(builds=builds)
            self._jobs[name] = job
            if before is not None and (ends_builds or not before.builds):
                before.is_useless.set()
        self.view.changed(name)
        do = partial(self._do, name, job, work)
        self._queues.add(instance.int, do, builds=builds, is_useless=job.is_useless.is_set)
        return BUSY

    def _do(self, name: AttemptName, job: _Job, work: Callable[[AtStep], None], turn: Turn) -> None:
        def give_up() -> None:
            if self._closing.is_set() or job.is_useless.is_set():
                raise GivenUp

        def at_step(step: str) -> None:
            give_up()
            if step in (DOWNLOADING, WAITING):
                turn.lend()
            else:
                turn.take_back(give_up)
            self._at_step(step)

        try:
            at_step("begin")
            work(at_step)
        except (WorkFailed, LibvirtAway) as failed:
            job.failure, job.runs_on = str(failed), isinstance(failed, RunsOn)
        except GivenUp:
            return
        except (OSError, BadXmlError) as failed:
            job.failure = str(failed)
        except Exception as bug:
            log.exception("a bug in the work of attempt %s of instance %x", name[1], name[0])
            job.failure = f"a bug in the compute: {type(bug).__name__}: {bug}"
        # A look that goes on may have seen the guest before the work ended.
        self.view.changed(name)
        job.is_done = True
        self._tell()

    # Looks

    def _tell(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._wake, self.root)
            except RuntimeError:
                # The loop has been closed meanwhile.
                return

    def _look_on(self) -> None:
        while not self._closing.is_set():
            self._must_look.clear()
            why = self._look()
            if why and why != self._why_not_seen:
                log.warning("host %s is not seen, it is looked at again: %s", self._named.name, why)
            self._why_not_seen = why
            if not why:
                self._is_known.set()
                if self._images.is_sweep_due(time.time()):
                    # Beside the looks: by these alone a host is well.
                    threading.Thread(target=self._forget_images, name="sweep images", daemon=True).start()
            self._looks_at = None
            self._tell()
            if self._must_look.wait(AGAIN_S if why else self._settings.look_every_s):
                self._closing.wait(SETTLE_S)

    def _look(self) -> str:
        """Look at the machine, its domains and the folder. Returns why that has failed; empty if it has not."""
        try:
            self._looks_at = (f"libvirt at {self._hypervisor.uri}", time.monotonic())
            with self._hypervisor.connected() as connection:
                self.view.look(connection)
                self._work.domains.pin_anew(connection)
            for warning in self.view.warnings:
                log.warning("host %s: %s", self._named.name, warning)
            # Guests that have ended are told even if the folder hangs.
            self._tell()
            self._looks_at = (f"the folder {self._settings.folder}", time.monotonic())
            self._folders.check()
            for warning in self.view.look_at_files():
                log.warning("host %s: %s", self._named.name, warning)
        except Exception as problem:  # noqa: BLE001 - without looks, nobody is told of guests that end
            return in_words(problem)
        return ""

    def _forget_images(self) -> None:
        try:
            self._images.forget_unused(time.time())
        except Exception as problem:  # noqa: BLE001 - as above
            log.warning("unused images stay in the cache: %s", in_words(problem))


def _name(instance: InstanceId, attempt: int) -> AttemptName:
    return (instance.int, attempt)
