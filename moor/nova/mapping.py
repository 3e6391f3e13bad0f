"""Which settings make schedulers here choose as Nova's would with these options, and what has no equal.

Pure: it judges lines that were read. Every value is checked as Nova's type, and then as the setting's, so that the fragment is
always accepted. A wrong value raises WrongOptionError.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from bus.configuration.sections import BadSetting, Section, without_password
from moor.nova.conf_file import DEFAULT, ConfFiles, OptionLine
from moor.nova.option_map import (
    ALL_FILTERS,
    ALL_WEIGHERS,
    DECIDED,
    FILTERS,
    FILTERS_BY_DEFAULT,
    INSTANCES_BY_DEFAULT,
    INSTANCES_FILTERS,
    IO_OPS_BY_DEFAULT,
    IO_OPS_FILTERS,
    MAX_ATTEMPTS,
    NO_EQUAL,
    OPTIONS,
    SCHEDULERS_OWN,
    STAYS,
    WEIGHERS,
    Key,
)

_TRUE, _FALSE = ("true", "1", "yes", "on", "t", "y"), ("false", "0", "no", "off", "f", "n")
ATTEMPTS_BY_DEFAULT = 3


class WrongOptionError(ValueError):
    """A value that Nova would not accept, or that no setting here may have; the message names the line."""

    def __init__(self, line: OptionLine, why: str) -> None:
        super().__init__(f"{line.where}: {line.shown} is {without_password(line.value)!r}: {why}")


class Told(Struct, frozen=True):
    """What becomes of one line, in words."""

    section: str
    option: str
    value: str
    where: str
    says: str


class NovaSettings(Struct, frozen=True):
    """The tables of our settings file, and what is to be told of the lines of nova.conf."""

    tables: dict[str, dict[str, Any]]
    became: tuple[Told, ...]
    no_equal: tuple[Told, ...]
    stays: tuple[Told, ...]


class _Draft:
    """The settings so far, each with the lines that it comes from, for errors."""

    def __init__(self, files: ConfFiles) -> None:
        self.files = files
        self.tables: dict[str, dict[str, Any]] = {}
        self.lines: dict[tuple[str, str], OptionLine] = {}
        self.told: dict[str, list[Told]] = {"became": [], "no equal": [], "stays": []}

    def line(self, key: Key) -> OptionLine | None:
        return self.files.last.get(key)

    def text(self, line: OptionLine) -> str:
        return self.files.resolved(line)

    def put(self, section: str, setting: str, value: object, line: OptionLine | None = None) -> None:
        self.tables.setdefault(section, {})[setting] = value
        if line:
            self.lines[section, setting] = line

    def tell(self, kind: str, line: OptionLine, says: str) -> None:
        told = Told(line.section, line.option, without_password(line.value), line.where, says)
        self.told[kind].append(told)


def settings_for(files: ConfFiles, sections: Mapping[str, Section[Any]]) -> NovaSettings:
    """`sections` are those of our settings file, by name: they check the values."""
    draft = _Draft(files)
    enabled = _filters(draft)
    _weighers(draft)
    _limits(draft, enabled)
    _attempts(draft)
    _plain_options(draft)
    _others(draft)
    for name, table in draft.tables.items():
        _check(draft, sections[name], table)
    ordered = {name: draft.tables[name] for name in sorted(draft.tables, key=[*sections].index)}
    became, no_equal, stays = (tuple(draft.told[kind]) for kind in ("became", "no equal", "stays"))
    return NovaSettings(ordered, became, no_equal, stays)


def _filters(draft: _Draft) -> tuple[str, ...]:
    """Write `filters`, and return the names of Nova's filters that are enabled."""
    line = draft.line(("filter_scheduler", "enabled_filters"))
    enabled = tuple(_items(draft.text(line))) if line else FILTERS_BY_DEFAULT
    ours = list(
        dict.fromkeys(FILTERS[name].name for name in enabled if name in FILTERS and FILTERS[name].name)
    )
    for name in enabled:
        known = FILTERS.get(name)
        if line and (known is None or not known.has_equal):
            why = (
                known.says
                if known
                else "a filter of another package; it may be rewritten as one of `moorage.filters`"
            )
            draft.tell("no equal", line, f"{name}: {why}")
    if _is_on(draft, ("scheduler", "limit_tenants_to_placement_aggregate")):
        required = _is_on(draft, ("scheduler", "placement_aggregate_required_for_tenants"))
        ours.append("required_own_aggregates" if required else "own_aggregates")
    else:
        _is_on(draft, ("scheduler", "placement_aggregate_required_for_tenants"))
    if _is_on(draft, ("scheduler", "enable_isolated_aggregate_filtering")):
        ours.append("aggregate_traits")
    draft.put("scheduler", "filters", ours, line)
    for key in DECIDED:
        if key[1] in (
            "enabled_filters",
            "limit_tenants_to_placement_aggregate",
            "enable_isolated_aggregate_filtering",
        ) and (each := draft.line(key)):
            draft.tell("became", each, "scheduler.filters")
    return enabled


def _weighers(draft: _Draft) -> None:
    line = draft.line(("filter_scheduler", "weight_classes"))
    classes = _items(draft.text(line)) if line else [ALL_WEIGHERS]
    names = [*WEIGHERS] if ALL_WEIGHERS in classes else [each.rpartition(".")[2] for each in classes]
    ours = list(
        dict.fromkeys(WEIGHERS[name].name for name in names if name in WEIGHERS and WEIGHERS[name].name)
    )
    if line:
        for name in names:
            known = WEIGHERS.get(name)
            if ALL_WEIGHERS not in classes and (known is None or not known.name):
                why = (
                    known.says
                    if known
                    else "a weigher of another package; it may be rewritten as one of `moorage.weighers`"
                )
                draft.tell("no equal", line, f"{name}: {why}")
        draft.tell("became", line, "scheduler.weighers")
    draft.put("scheduler", "weighers", ours, line)


def _limits(draft: _Draft, enabled: Iterable[str]) -> None:
    """Nova's limits count only if their filter is enabled. Ours have 0 for any number."""
    for filters, option, usual, setting in (
        (IO_OPS_FILTERS, "max_io_ops_per_host", IO_OPS_BY_DEFAULT, "io_ops_per_host_max"),
        (INSTANCES_FILTERS, "max_instances_per_host", INSTANCES_BY_DEFAULT, "instances_per_host_max"),
    ):
        line = draft.line(("filter_scheduler", option))
        limit = _whole(draft, line) if line else usual
        if not any(name in enabled for name in filters):
            draft.put("scheduler", setting, 0)
            if line:
                draft.tell("became", line, f"scheduler.{setting} = 0: {filters[0]} is not enabled")
            continue
        if line and limit < 1:
            raise WrongOptionError(line, f"must be at least 1 here, where 0 of {setting} means any number")
        draft.put("scheduler", setting, limit, line)
        if line:
            draft.tell("became", line, f"scheduler.{setting}")


def _attempts(draft: _Draft) -> None:
    line = draft.line(MAX_ATTEMPTS)
    attempts = _whole(draft, line) if line else ATTEMPTS_BY_DEFAULT
    if line and attempts < 1:
        raise WrongOptionError(line, "must be at least 1")
    draft.put("scheduler", "alternates_max", attempts - 1, line)
    if line:
        draft.tell("became", line, "scheduler.alternates_max")


def _plain_options(draft: _Draft) -> None:
    readers: Mapping[str, Callable[[_Draft, OptionLine], object]] = {
        "whole": _whole,
        "number": _number,
        "true or false": _truth,
        "text": _Draft.text,
    }
    for key, here in OPTIONS.items():
        if line := draft.line(key):
            draft.put(here.section, here.setting, readers[here.kind](draft, line), line)
            draft.tell("became", line, f"{here.section}.{here.setting}")


def _others(draft: _Draft) -> None:
    """Lines that set nothing here: those without an equal, those that Nova's other services go on reading, and unknown ones."""
    handled = {*OPTIONS, *DECIDED}
    seen: set[Key] = set()
    for line in draft.files.lines:
        key = line.key
        if key in handled or (key in seen and key[1] != "available_filters"):
            continue
        seen.add(key)
        last = line if key[1] == "available_filters" else draft.files.last[key]
        if key in NO_EQUAL:
            none = NO_EQUAL[key]
            if draft.text(last).strip().lower() not in none.harmless:
                draft.tell("no equal", last, none.why)
        elif key in STAYS:
            draft.tell("stays", last, STAYS[key])
        elif key == (DEFAULT, "transport_url"):
            draft.tell(
                "stays",
                last,
                "give it to `moor run nova-scheduler` as --nova-bus, with amqp:// in place of rabbit://",
            )
        elif key[0] in SCHEDULERS_OWN:
            draft.tell("no equal", last, "Nova 2025.1 and later have no such option, as far as is known here")


def _check(draft: _Draft, section: Section[Any], table: Mapping[str, Any]) -> None:
    """Raise WrongOptionError for a value that our setting may not have."""
    stated = {}
    for setting, value in table.items():
        line = draft.lines.get((section.name, setting))
        try:
            stated[setting] = section.stated(
                setting, tuple(value) if isinstance(value, list) else value, "nova.conf"
            )
        except BadSetting:
            if line is None:
                raise
            why = f"{section.name}.{setting} must be {section.settings[setting].allowed}"
            raise WrongOptionError(line, why) from None
    try:
        section.made_of(stated)
    except BadSetting as wrong:
        lines = [line for key, line in draft.lines.items() if key[0] == section.name]
        raise WrongOptionError(lines[0], f"not with the other options: {wrong}") from None


def _is_on(draft: _Draft, key: Key) -> bool:
    line = draft.line(key)
    return _truth(draft, line) if line else False


def _truth(draft: _Draft, line: OptionLine) -> bool:
    text = draft.text(line).strip().lower()
    if text not in (*_TRUE, *_FALSE):
        raise WrongOptionError(line, f"must be one of {', '.join((*_TRUE, *_FALSE))}")
    return text in _TRUE


def _whole(draft: _Draft, line: OptionLine) -> int:
    text = draft.text(line)
    try:
        return int(text)
    except ValueError:
        raise WrongOptionError(line, "must be a whole number") from None


def _number(draft: _Draft, line: OptionLine) -> float:
    text = draft.text(line)
    try:
        number = float(text)
    except ValueError:
        raise WrongOptionError(line, "must be a number") from None
    if number - number != 0:
        raise WrongOptionError(line, "must be a finite number")
    return number


def _items(text: str) -> list[str]:
    """Nova's lists have commas, and may stand in brackets or go on in further lines."""
    return [
        item
        for each in text.strip("[] \n").replace("\n", ",").split(",")
        if (item := each.strip().strip("'\""))
    ]


assert ALL_FILTERS in NO_EQUAL["filter_scheduler", "available_filters"].harmless
