"""Reads the settings of workers from environment variables and from tables of a file.

    MOOR_SCHEDULER_CLAIMS_MAX=20            [scheduler]
                                            claims_max = 20

The fields of the settings' struct are the keys; there is no second list. A field with several texts is a list in a file,
and one text with commas in a variable or a flag. An unknown key, a value of a wrong type and limits that contradict each
other are errors that name the key, the value and where it was set.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from math import isfinite
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct, structs

from bus.configuration.addresses import BadSetting, is_secret, without_password
from bus.configuration.settings import BusSettings
from bus.process import exiting_if_wrong

S = TypeVar("S", bound=Struct)
D = TypeVar("D", bound=Struct)

# No time may be longer: dates so far away can no longer be computed with.
YEARS_MAX = 100
# The unit of time that a field names, and how many of it a year has.
_UNIT = re.compile(r"_(s|ms)(?:_|$)")
_PER_YEAR = {"s": 365 * 86_400, "ms": 365 * 86_400_000}

_TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}

# The largest number that a column of a database has for a count.
INTEGER_MAX = 2_147_483_647


class Section(Struct, Generic[S], frozen=True):
    """A settings struct, the name of its table in a settings file, and how its environment variables are read."""

    name: str
    kind: type[S]
    # Fields that are set in another way.
    omitted: tuple[str, ...] = ()
    # Endings of variables that have this section's prefix but belong to something else.
    others: tuple[str, ...] = ()
    # Variables that set several fields at once.
    aliases: Mapping[str, tuple[str, ...]] = {}
    # Numbers that may be negative. Every other number is a duration, a size or a count.
    signed: tuple[str, ...] = ()

    @property
    def types(self) -> dict[str, Any]:
        fields = structs.fields(self.kind)
        return {field.name: field.type for field in fields if field.name not in self.omitted}

    def variable(self, field: str) -> str:
        return f"MOOR_{self.name}_{field}".upper()


class Tuned(Struct, frozen=True):
    """The value of one field, and where it was set: a flag, a variable, a file."""

    value: object
    where: str


BUS = Section("bus", BusSettings, others=("url",))


def tuned_in(section: Section[Any], environment: Mapping[str, str]) -> dict[str, Tuned]:
    """The settings of a section that environment variables set. An empty variable counts as not set."""
    said = {name: text for name, each in environment.items() if (text := each.strip())}
    stated = {
        field: tuned_from(section, field, said[variable], variable)
        for variable, fields in section.aliases.items()
        for field in fields
        if variable in said
    }
    prefix = section.variable("")
    for variable in sorted(said):
        field = variable.removeprefix(prefix).lower()
        if variable.startswith(prefix) and not _is_of_another(section, field):
            stated[field] = tuned_from(section, field, said[variable], variable)
    return stated


def tuned_by(section: Section[Any], table: Mapping[str, object], where: str) -> dict[str, Tuned]:
    """Check the values of one section of a settings file.

    `table` has the values by field, and `where` says where they were set.
    """
    return {field: Tuned(_checked(section, field, value, where), where) for field, value in table.items()}


def tuned_from(section: Section[Any], field: str, text: str, where: str) -> Tuned:
    return Tuned(_checked(section, field, text, where, strict=False), where)


def settings_of(base: S, section: Section[S], stated: Mapping[str, Tuned]) -> S:
    """Replace defaults in the settings `base` by the values in `stated`. Limits that contradict each other are an error."""
    try:
        return structs.replace(base, **{field: each.value for field, each in stated.items()})
    except ValueError as broken:
        raise _contradiction(section, stated, str(broken)) from None


def settings_in(environment: Mapping[str, str], section: Section[S]) -> S:
    """The settings of a section, from environment variables alone. A setting without a variable has its default."""
    return settings_of(section.kind(), section, tuned_in(section, environment))


def settings_for_main(
    environment: Mapping[str, str], section: Section[S], database: Section[D]
) -> tuple[S, BusSettings, D]:
    """Read the settings of a worker, its bus and its database from the environment. A wrong one ends the process."""
    with exiting_if_wrong():
        return (
            settings_in(environment, section),
            settings_in(environment, BUS),
            settings_in(environment, database),
        )


def _is_of_another(section: Section[Any], field: str) -> bool:
    return any(
        field == other or (other.endswith("_") and field.startswith(other)) for other in section.others
    )


def _checked(section: Section[Any], field: str, value: object, where: str, *, strict: bool = True) -> object:
    key = f"{section.name}.{field}"
    types = section.types
    if field not in types:
        near = get_close_matches(field, types, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(types)}"
        raise BadSetting(key, value, where, f"there is no such setting; {hint}")
    try:
        read = msgspec.convert(_split(value, types[field], strict=strict), types[field], strict=strict)
    except msgspec.ValidationError:
        raise BadSetting(key, value, where, f"must be {_named(types[field])}") from None
    is_signed = field in section.signed
    if isinstance(read, int | float) and not (isfinite(read) and (is_signed or read >= 0)):
        raise BadSetting(
            key, value, where, "must be finite" if is_signed else "must be at least 0, and finite"
        )
    if isinstance(read, int | float) and (unit := _UNIT.search(field)):
        time_max = YEARS_MAX * _PER_YEAR[unit[1]]
        if read > time_max:
            raise BadSetting(key, value, where, f"must be at most {time_max}, which are {YEARS_MAX} years")
    # Sizes in bytes are not stored.
    if type(read) is int and not is_signed and "bytes" not in field and read > INTEGER_MAX:
        raise BadSetting(key, value, where, f"must be at most {INTEGER_MAX}")
    return read


def text_of(value: object) -> str:
    """Write a setting's value as the text of an environment variable, from which it can be read again.

    An empty list is written as a comma, since an empty variable counts as not set.
    """
    return (",".join(value) or ",") if isinstance(value, tuple) else str(value)


def _split(value: object, kind: Any, *, strict: bool) -> object:
    """Split the text of a variable or a flag at its commas, if its field is a tuple. Other values stay as they are."""
    if strict or get_origin(kind) is not tuple or not isinstance(value, str):
        return value
    return [text for part in value.split(",") if (text := part.strip())]


def _named(kind: Any) -> str:
    """The name of a type for error messages."""
    if get_origin(kind) is tuple:
        return "a list of texts"
    words: tuple[object, ...] = get_args(kind)
    return " or ".join(map(str, words)) if words else _TYPES[kind]


def _shown(field: str, value: object) -> str:
    return "***" if is_secret(field) else without_password(repr(value))


def _contradiction(section: Section[Any], stated: Mapping[str, Tuned], broken: str) -> BadSetting:
    """The error for limits that contradict each other, as the text `broken` says.

    It shows the values of the fields that the text mentions and where they were set. If the text mentions none of
    the fields that were set, it shows all of these.
    """
    named = [field for field in dict.fromkeys(re.findall(r"\w+", broken)) if field in stated] or [*stated]
    first, *others = named
    beside = "".join(
        f"; {section.name}.{field} is {_shown(field, stated[field].value)} ({stated[field].where})"
        for field in others
    )
    return BadSetting(
        f"{section.name}.{first}", stated[first].value, stated[first].where, f"{broken}{beside}"
    )
