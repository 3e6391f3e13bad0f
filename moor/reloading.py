"""Reads the settings file of a running worker again, on SIGHUP.

A file that is wrong changes nothing: all of it is read and checked before the first setting changes. Settings that take
effect only at the start keep their values, and the log names them.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from kit.logs import log_again
from kit.process import reload_by
from kit.settings import BadSetting, Section, Stated, shown, tell_followers
from moor.settings import GENERAL, GeneralSettings, Sources, sources

log = logging.getLogger(__name__)


class HeldSection(Struct):
    """The settings of one section: as the process was given them, as they are `now`, and the flags that count before the file.

    `base` has the command's own defaults.
    """

    section: Section[Any]
    given: Struct
    now: Struct
    flags: Mapping[str, Stated]
    base: Struct | None = None


class Change(Struct, frozen=True):
    """A setting whose value in the file is another than the one in force."""

    key: str
    before: Any
    after: Any
    where: str

    def __str__(self) -> str:
        before, after = shown(self.key, self.before), shown(self.key, self.after)
        return f"{self.key}: {before} -> {after} ({self.where})"


class Reloading:
    """Reads the settings file again, for the sections that the parts of this process hold."""

    def __init__(
        self,
        config: Path | None,
        here: Path,
        *,
        top: GeneralSettings,
        flags: Mapping[str, str],
        log_level: str,
    ) -> None:
        """`top` has what stands in no table, as it was read at the start. `flags` are those for the log, which count before the
        file; `log_level` is the level if nothing says another.
        """
        self._config = config
        self._here = here
        self._flags = dict(flags)
        self._log_level = log_level
        self._top = structs.asdict(top)
        self._sections: list[HeldSection] = []

    def hold(
        self, section: Section[Any], given: Struct, flags: Mapping[str, Stated], base: Struct | None = None
    ) -> None:
        """From now on the followers of these settings are told of new values, and changes that need a restart are logged."""
        self._sections.append(HeldSection(section, given, given, flags, base))

    def reload(self) -> None:
        """Read the file, and change what can be changed. Never raises: a wrong file is only logged."""
        try:
            reread = self._reread()
        except BadSetting as wrong:
            log.error("the settings stay as they are: %s", wrong)  # noqa: TRY400 - the text says everything
            return
        if reread.file is None:
            log.warning("nothing was read again: there is no settings file")
            return
        before, level = logging.getLogger().level, self._level(reread)
        self._apply(reread)
        # At the more talkative of the two levels.
        logging.getLogger().setLevel(min(before, logging.getLevelName(level)))
        self._tell(reread)
        log_again(level=level, form=self._flags.get("log_format") or reread.top.log_format)

    def _tell(self, reread: "Reread") -> None:
        now, later = reread.changes(reloaded=True), reread.changes(reloaded=False)
        for change in now:
            log.warning("reloaded: %s", change)
        for change in later:
            log.warning("needs a restart: %s", change)
        log.warning(
            "%s was read again: %d settings changed, %d need a restart", reread.file, len(now), len(later)
        )

    def _reread(self) -> "Reread":
        """Read and check everything, and change nothing."""
        read = sources(os.environ, config=self._config, here=self._here)
        # All tables, also those of other workers: a file that is wrong anywhere is refused as at a start.
        from moor.worker_settings import SECTIONS  # noqa: PLC0415 - many modules, for processes that get a SIGHUP

        top = read.of(GENERAL)
        for section in SECTIONS.values():
            read.of(section)
        of_top = [
            Change(field, before, after, str(read.file))
            for field, before in self._top.items()
            if (after := getattr(top, field)) != before and field not in self._flags
        ]
        return Reread(read.file, top, [_reread_section(each, read) for each in self._sections], of_top)

    def _apply(self, reread: "Reread") -> None:
        """Nothing here fails, and nothing else runs in between."""
        for each in reread.sections:
            if each.fresh != each.held.now:
                each.held.now = each.fresh
                tell_followers(each.held.given, each.fresh)
        self._top |= {each.key: each.after for each in reread.of_top if each.key in GENERAL.reloaded}

    def _level(self, reread: "Reread") -> str:
        return self._flags.get("log_level") or reread.top.log_level or self._log_level


class RereadSection(Struct, frozen=True):
    """`fresh` has the values in force, with those that are reloaded as they are in the file now."""

    held: HeldSection
    fresh: Struct
    changes: tuple[Change, ...]


class Reread(Struct, frozen=True):
    """The contents of the file now, all checked, beside the values in force."""

    file: Path | None
    top: GeneralSettings
    sections: list[RereadSection]
    of_top: list[Change]

    def changes(self, *, reloaded: bool) -> list[Change]:
        """What takes effect now, or else what needs a restart."""
        found = [(change, each.held.section) for each in self.sections for change in each.changes]
        found += [(change, GENERAL) for change in self.of_top]
        return [
            change
            for change, section in found
            if (change.key.rpartition(".")[2] in section.reloaded) is reloaded
        ]


def _reread_section(held: HeldSection, read: Sources) -> RereadSection:
    section = held.section
    values = read.of(section, held.base, held.flags)
    stated = {**read.stated(section), **held.flags}
    changed = [field for field in section.settings if getattr(values, field) != getattr(held.now, field)]
    changes = [
        Change(
            section.settings[field].key,
            getattr(held.now, field),
            getattr(values, field),
            stated[field].where if field in stated else "the default",
        )
        for field in changed
    ]
    now = tuple(field for field in changed if field in section.reloaded)
    return RereadSection(held, _together(held, values, now, stated), tuple(changes))


def _together(
    each: HeldSection, values: Struct, fields: Sequence[str], stated: Mapping[str, Stated]
) -> Struct:
    """The settings in force with those that change now. They must not contradict each other either."""
    try:
        return structs.replace(each.now, **{field: getattr(values, field) for field in fields})
    except ValueError as broken:
        field = fields[0]
        where = stated[field].where if field in stated else "default"
        raise BadSetting(
            each.section.settings[field].key,
            getattr(values, field),
            where,
            f"{broken}, beside settings that need a restart",
        ) from None


def reloads_on_hangup(reloading: Reloading) -> None:
    """From now on the process reads its settings again when it gets a SIGHUP."""
    reload_by(reloading.reload)
