"""Work that may not fail: it is tried until libvirt and the folder are back, and nothing is in the way any more."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from compute_sim.libvirt.failures import in_words

log = logging.getLogger(__name__)

T = TypeVar("T")
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
