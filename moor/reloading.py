"""Reads the settings file of a running worker again, on SIGHUP.

A file that is wrong changes nothing: all of it is read and checked before the first setting changes. Settings that take
effect only at the start keep their values, and the log names them.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from kit.logs import log_again
from kit.settings import BadSetting, Section, Stated, shown, tell_followers
from moor.settings import GENERAL, Sources, sources

log = logging.getLogger(__name__)


class HeldSection(Struct):
    """The settings of one section: as the process was given them, as they are `now`, and the flags that count before the file.

    `base` has the command's own defaults.
    """

    section: Section[Any]
    given: Struct
    now: Any
    flags: Mapping[str, Stated]
    base: Struct | None = None


class Change(Struct, frozen=True):
    """A setting whose value in the file is another than the one in force."""

    key: str
    before: Any
    after: Any
    where: str
    takes_effect: bool

    def __str__(self) -> str:
        before, after = shown(self.key, self.before), shown(self.key, self.after)
        return f"{self.key}: {before} -> {after} ({self.where})"


class Reloading:
    """Reads the settings file again, for the sections that the parts of this process hold."""

    def __init__(self, config: Path | None, here: Path, *, log_level: str) -> None:
        """`log_level` is the level if nothing says another."""
        self._config = config
        self._here = here
        self._log_level = log_level
        self._sections: list[HeldSection] = []

    def hold(
        self, section: Section[Any], given: Struct, flags: Mapping[str, Stated], base: Struct | None = None
    ) -> None:
        """From now on the followers of these settings are told of new values, and changes that need a restart are logged."""
        self._sections.append(HeldSection(section, given, given, flags, base))

    def reload(self) -> None:
        """Read the file, and change what can be changed. Never raises: a wrong file is only logged."""
        try:
            read = sources(os.environ, config=self._config, here=self._here)
            _check_all(read)
            fresh = [(each, *_reread(each, read)) for each in self._sections]
        except BadSetting as wrong:
            log.error("the settings stay as they are: %s", wrong)  # noqa: TRY400 - the text says everything
            return
        if read.file is None:
            log.warning("nothing was read again: there is no settings file")
            return
        # Nothing here fails, and nothing else runs in between.
        for held, values, _ in fresh:
            if values != held.now:
                held.now = values
                tell_followers(held.given, values)
        self._tell([change for *_, changes in fresh for change in changes], read.file)

    def _tell(self, changes: list[Change], file: Path) -> None:
        top = next((each.now for each in self._sections if each.section is GENERAL), GENERAL.kind())
        level = top.log_level or self._log_level
        # At the more talkative of the two levels.
        logging.getLogger().setLevel(min(logging.getLogger().level, logging.getLevelName(level)))
        for change in sorted(changes, key=lambda each: not each.takes_effect):
            log.warning("reloaded: %s" if change.takes_effect else "needs a restart: %s", change)
        now = sum(each.takes_effect for each in changes)
        log.warning(
            "%s was read again: %d settings changed, %d need a restart", file, now, len(changes) - now
        )
        log_again(level=level, form=top.log_format)


def _check_all(read: Sources) -> None:
    """All tables, also those of other workers: a file that is wrong anywhere is refused as at a start."""
    from moor.worker_settings import SECTIONS  # noqa: PLC0415 - many modules, for processes that get a SIGHUP

    for section in SECTIONS.values():
        read.of(section)


def _reread(held: HeldSection, read: Sources) -> tuple[Struct, list[Change]]:
    """The settings in force, with those that can change now as they are in the file; and what differs there."""
    section = held.section
    values = read.of(section, held.base, held.flags)
    stated = {**read.stated(section), **held.flags}
    changes = {
        field: Change(
            section.settings[field].key,
            getattr(held.now, field),
            getattr(values, field),
            stated[field].where if field in stated else "the default",
            field in section.reloaded,
        )
        for field in section.settings
        if getattr(values, field) != getattr(held.now, field)
    }
    new = {field: change for field, change in changes.items() if change.takes_effect}
    try:
        # They must not contradict those that stay either.
        now = structs.replace(held.now, **{field: change.after for field, change in new.items()})
    except ValueError as broken:
        first = next(iter(new.values()))
        why = f"{broken}, beside settings that need a restart"
        raise BadSetting(first.key, first.after, first.where, why) from None
    return now, [*changes.values()]
