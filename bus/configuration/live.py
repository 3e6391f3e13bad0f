"""The few settings that change in a running process when its settings file is read again (`Section.reloaded`); all others need a restart.

Settings are frozen. What is made of these few keeps a `SettingsFollower`, which is given the new ones.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from msgspec import Struct

S = TypeVar("S", bound=Struct)


class SettingsFollower(Generic[S]):
    """Calls `take` with the new values of these settings, for as long as somebody keeps this object."""

    def __init__(self, settings: S, take: Callable[[S], None]) -> None:
        self.settings = settings
        self.take = take
        _followers.add(self)


_followers: WeakSet[SettingsFollower[Any]] = WeakSet()


def tell_followers(settings: Struct, fresh: Struct) -> None:
    """`settings` are those from the start of the process, and `fresh` are the values that count from now on."""
    for each in [*_followers]:
        if each.settings is settings:
            each.take(fresh)
