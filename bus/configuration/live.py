"""The settings of a running process change in place when its settings file is read again.

A part that reads a setting each time it uses it needs nothing from here. What is made of settings at the start is made
again by a `Remade`. Each section says which settings take effect so (`Section.reloaded`); all others need a restart.
"""

from collections.abc import Callable, Iterable
from weakref import WeakSet

from msgspec import Struct, structs


class Remade:
    """Calls `make` after the settings have changed, for as long as somebody keeps this object."""

    def __init__(self, settings: Struct, make: Callable[[], None]) -> None:
        self.settings = settings
        self.make = make
        _remade.add(self)


_remade: WeakSet[Remade] = WeakSet()


def set_in_place(live: Struct, fresh: Struct, fields: Iterable[str]) -> None:
    """Give `live` these fields of `fresh`. Frozen values are only changed here: every part that holds `live` sees them at
    once, and no part runs in between.
    """
    for field in fields:
        structs.force_setattr(live, field, getattr(fresh, field))
    for each in [*_remade]:
        if each.settings is live:
            each.make()
