"""Work on guests: why it fails, how it is tried until it succeeds, and in which order and how much of it runs at once."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from kit.errors import Operational

log = logging.getLogger(__name__)

T = TypeVar("T")

# Why work on a guest fails: the text is told to the conductor, and is for people.


class WorkFailed(Exception):  # noqa: N818 - a reason, which the attempt's answer tells
    """The work for an attempt has failed; the text says why, in the words of the program that refused it."""


class RunsOn(WorkFailed):
    """A rebuild has failed before it changed anything, and the guest runs as before."""


class GivenUp(BaseException):
    """The work ends here, since a later order for the instance has come, or the process ends."""


class LibvirtAway(Operational):
    """libvirt does not answer; the text has its own words."""


def in_words(problem: Exception) -> str:
    """The words of a failure; of an error that nobody foresaw, with its type."""
    if isinstance(problem, WorkFailed | LibvirtAway | OSError | ValueError):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"


# Work that may not fail: it is tried until libvirt and the folder are back, and nothing is in the way any more.


# Called before each step of a work: it raises `GivenUp` if a later order has made the work useless, or if the process ends.
AtStep = Callable[[str], None]
# The step that is come to again and again until the next try, or until a guest has shut down.
WAITING = "wait"
# The pause before another try, and how often `at_step` is asked meanwhile.
AGAIN_S = 1.0
_POLL_S = 0.1


def until_done(what: str, try_: Callable[[], T], at_step: AtStep) -> T:
    """Try this again and again until it succeeds, whatever is raised. `what` says for the log what does not happen yet."""
    told = ""
    while True:
        try:
            return try_()
        except Exception as problem:  # noqa: BLE001 - its caller says that it was done, and so it must have been
            if in_words(problem) != told:
                told = in_words(problem)
                log.warning("%s does not happen yet: %s", what, told)
        by_s = time.monotonic() + AGAIN_S
        while time.monotonic() < by_s:
            at_step(WAITING)
            time.sleep(_POLL_S)


# Runs the work on instances in threads: that on one instance in its order, that on different ones at the same time.
#
# Builds are worked on so many at once, and all other orders, such as to stop and to destroy, so many beside them: they never wait for a
# build of another instance. What waits for a download, or until something is out of its way, lets others go on meanwhile.


class Turn:
    """A piece of work, and its turn among those of its kind; that may be lent for as long as the work only waits."""

    def __init__(
        self,
        queues: "WorkQueues",
        work: Callable[["Turn"], None],
        *,
        builds: bool,
        is_useless: Callable[[], bool],
    ) -> None:
        self._queues = queues
        self.work, self.builds, self.is_useless = work, builds, is_useless
        self.is_lent = False

    def lend(self) -> None:
        if not self.is_lent:
            self.is_lent = True
            self._queues.give_back(self)

    def take_back(self, give_up: Callable[[], None]) -> None:
        """Wait for a turn again. `give_up` is called meanwhile, and may raise."""
        if self.is_lent:
            self._queues.take_again(self, give_up)
            self.is_lent = False


class WorkQueues:
    """Pieces of work by instance. A busy instance takes one thread, which ends with the process."""

    def __init__(self, at_once: int, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._queues: dict[int, deque[Turn]] = {}
        self._busy: set[int] = set()
        # How many turns are free, for builds and for other orders; and how many of each want theirs again.
        self._free = {True: at_once, False: at_once}
        self._returning = {True: 0, False: 0}
        self._is_closed = False

    def add(
        self,
        instance: int,
        work: Callable[[Turn], None],
        *,
        builds: bool,
        is_useless: Callable[[], bool],
    ) -> None:
        """Do this work after what was added for the instance before. What is useless by then is left out."""
        with self._changed:
            turn = Turn(self, work, builds=builds, is_useless=is_useless)
            self._queues.setdefault(instance, deque()).append(turn)
            self._begin_what_can()

    def close(self, patience_s: float) -> bool:
        """Begin no other work, and wait for what has begun. Returns whether all has ended."""
        with self._changed:
            self._is_closed = True
            return self._changed.wait_for(lambda: not self._busy, patience_s)

    def give_back(self, turn: Turn) -> None:
        with self._changed:
            self._free[turn.builds] += 1
            self._begin_what_can()
            self._changed.notify_all()

    def take_again(self, turn: Turn, give_up: Callable[[], None]) -> None:
        with self._changed:
            self._returning[turn.builds] += 1
            try:
                while not self._free[turn.builds]:
                    give_up()
                    self._changed.wait(_POLL_S)
                self._free[turn.builds] -= 1
            finally:
                self._returning[turn.builds] -= 1

    def _begin_what_can(self) -> None:
        """Begin the next pieces of instances that are not busy, as far as there are turns. What waits for a turn again goes first."""
        if self._is_closed:
            return
        for instance in [each for each in self._queues if each not in self._busy]:
            queue = self._queues[instance]
            while queue and queue[0].is_useless():
                queue.popleft()
            if not queue:
                del self._queues[instance]
            elif self._free[queue[0].builds] > self._returning[queue[0].builds]:
                turn = queue[0]
                name = f"{self._name}_{instance:x}"
                # It waits for the lock before it changes anything here.
                threading.Thread(target=self._do, args=(instance, turn), name=name, daemon=True).start()
                queue.popleft()
                self._free[turn.builds] -= 1
                self._busy.add(instance)

    def _do(self, instance: int, turn: Turn) -> None:
        try:
            turn.work(turn)
        finally:
            with self._changed:
                self._busy.discard(instance)
                if not turn.is_lent:
                    self._free[turn.builds] += 1
                self._begin_what_can()
                self._changed.notify_all()
