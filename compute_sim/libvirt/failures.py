"""Why work on a guest fails: the text is told to the conductor, and is for people."""

from bus.errors import Operational


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
