"""Reads the settings of one section: from variables, from its table of the settings file, and from flags.

    MOOR_SCHEDULER_MOVE_TIMEOUT_S=20            [scheduler]
                                            move_timeout_s = 20

The section's struct is the only list of its settings. Each field has a type with limits, a default, and a description
(`msgspec.Meta`). A field with several texts is a list in a file, and one text with commas in a variable or a flag. An
unknown key, a value that is not allowed, and values that contradict each other are errors that name the setting, its
value, where it was set, and what is allowed.
"""

import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from fnmatch import fnmatch
from functools import cache
from typing import Annotated, Any, Final, Generic, TypeVar
from weakref import WeakSet

import msgspec
from msgspec import Meta, Struct, inspect, structs

from kit.urls import shown_host

S = TypeVar("S", bound=Struct)

# The largest number that a column of a database has for a count.
_INTEGER_MAX = 2_147_483_647
# No time may be longer: dates so far away can no longer be computed with.
_CENTURY_S = 100 * 365 * 86_400
_CENTURY_MS = _CENTURY_S * 1000

# The words for true and false that the command line takes, too.
_BOOLEANS = {
    **dict.fromkeys(("t", "yes", "y", "on"), "true"),
    **dict.fromkeys(("f", "no", "n", "off"), "false"),
}
# How error messages and pages call a type.
_WORDS: Mapping[type[inspect.Type], str] = {
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.BoolType: "true or false",
    inspect.StrType: "a text",
    inspect.VarTupleType: "a list of texts",
    inspect.DictType: "a table of texts",
}

# A pair that ends among the hosts of a URL, so that what follows its comma may be another host; and a part that cannot be one.
_HOSTS_UNFINISHED = re.compile(r"[^=]*=[\w+]+://[^/?#]*")
_NEXT_PAIR = re.compile(r"[\w-]+=")

# The login of a URL, from `://` to `@`; and the login of a URL whose scheme is misspelt.
_LOGIN = re.compile(r"(://[^:/@]*):.*@", re.DOTALL)
_LOGIN_OF_NO_SCHEME = re.compile(r":(?!//|\s)\S*@")
# The hosts of a URL, and the rest of the text without the quotes and brackets at its end.
_HOSTS = re.compile(r"(://(?:[^/?#\s@]*@)?)([^/?#\s'\"@]+)(?=[/?#\s'\"]|\Z).*?(['\"),\]}]*)\Z", re.DOTALL)
# Parts of a URL's query. A value is shown only if the name is known: `pasword=` is one that is not.
_PARAMETER = re.compile(
    r"([?&;](?!(?:application_name|auth|cafile|capath|certfile|charset|connection_timeout|heartbeat|host|keyfile|no_verify_ssl|"
    r"passwordfile|port|ssl(?:_?(?:ca|cert|key|mode|rootcert))?|target_session_attrs|timeout|user)=)[\w.-]+=)[^&;\s'\"]*"
)
# A pair outside a URL, such as in libpq's `host=... password=...`.
_PAIR_OF_SECRET = re.compile(r"(?i)\b(\w*(?:password|passwd|pwd|secret|token)\s*=\s*)[^\s&;'\"]+")

Count = Annotated[int, Meta(ge=1, le=_INTEGER_MAX)]
CountOr0 = Annotated[int, Meta(ge=0, le=_INTEGER_MAX)]
Seconds = Annotated[float, Meta(gt=0, le=_CENTURY_S)]
Milliseconds = Annotated[float, Meta(gt=0, le=_CENTURY_MS)]
MillisecondsOr0 = Annotated[float, Meta(ge=0, le=_CENTURY_MS)]


# For BadSetting: the value of a key that is not known. Where a secret's key is misspelt, this is the secret.
NOT_SHOWN: Final = object()


class BadSetting(ValueError):  # noqa: N818 - named for what it is
    """An invalid setting: its key, its value, where it was set, and what is allowed."""

    def __init__(self, key: str, value: object, where: str, why: str) -> None:
        said = key if value is NOT_SHOWN else f"{key} is {shown(key, value)}"
        super().__init__(f"{said} ({where}): {why}")
        self.key = key


class Stated(Struct, frozen=True):
    """The value of one setting, and where it was set: a flag, a variable, a file."""

    value: Any
    where: str


class Setting(Struct, frozen=True):
    """One setting, as the field of its section's struct says it."""

    # As in error messages: "scheduler.move_timeout_s".
    key: str
    annotation: Any
    default: Any
    described: inspect.Metadata

    @property
    def variable(self) -> str:
        return f"MOOR_{self.key.replace('.', '_')}".upper()

    @property
    def meaning(self) -> str:
        return str((self.described.extra_json_schema or {})["description"])

    @property
    def extra(self) -> Mapping[str, Any]:
        """What else its type says: its `flag`, its `metavar`, its `check`."""
        return self.described.extra or {}

    @property
    def allowed(self) -> str:
        """The values that its type allows, in words: "a whole number, at least 1, at most 200"."""
        match self.described.type:
            case inspect.LiteralType(values=words):
                return " or ".join(map(str, words))
            case inspect.IntType() | inspect.FloatType() as number:
                high = "100 years" if number.le in (_CENTURY_S, _CENTURY_MS) else number.le
                limits = {"more than": number.gt, "at least": number.ge, "at most": high}
                said = [
                    f", {word} {str(limit).removesuffix('.0')}"
                    for word, limit in limits.items()
                    if limit is not None
                ]
                return "".join((_WORDS[type(number)], *said))
            case other:
                return _WORDS[type(other)]


class Section(Struct, Generic[S], frozen=True):
    """A struct of settings, and the names that they have outside."""

    # The table in a settings file.
    name: str
    kind: type[S]
    # Whose settings these are.
    about: str
    # Fields that are set in another way.
    omitted: tuple[str, ...] = ()
    # Patterns of keys whose variables have this section's prefix but belong to something else.
    others: tuple[str, ...] = ()
    # Fields that take effect in a running process when its file is read again.
    reloaded: frozenset[str] = frozenset()

    @property
    def settings(self) -> dict[str, Setting]:
        known = _settings_of(self.name, self.kind)
        return {field: each for field, each in known.items() if field not in self.omitted}

    def on_hangup(self, field: str) -> str:
        """What becomes of a new value in the file when a running worker gets a SIGHUP, in words."""
        return "reloaded" if field in self.reloaded else "needs a restart"

    def variable(self, field: str) -> str:
        return self.settings[field].variable

    def read(self, environment: Mapping[str, str]) -> S:
        """The settings from environment variables alone. A setting without a variable has its default."""
        return self.made_of(self.in_environment(environment))

    def in_environment(self, environment: Mapping[str, str]) -> dict[str, Stated]:
        """The settings that variables set. An empty variable counts as not set."""
        said = {name: text for name, each in environment.items() if (text := each.strip())}
        fields = {each.variable: field for field, each in self.settings.items()}
        prefix = f"MOOR_{self.name}_".upper()
        for variable in sorted(said.keys() - fields.keys()):
            field = variable.removeprefix(prefix).lower()
            if variable.startswith(prefix) and not any(fnmatch(field, other) for other in self.others):
                fields[variable] = field
        return {
            field: self.stated(field, said[variable], variable)
            for variable, field in fields.items()
            if variable in said
        }

    def in_table(self, table: Mapping[str, object], where: str) -> dict[str, Stated]:
        """The settings in this section's table of the settings file."""
        return {field: self.stated(field, value, where, strict=True) for field, value in table.items()}

    def stated(self, field: str, value: object, where: str, *, strict: bool = False) -> Stated:
        """Check one value, and convert it to its field's type. It may be a text, unless `strict`."""
        setting = self.settings.get(field)
        if setting is None:
            why = f"there is no such setting; {near(field, self.settings)}"
            raise BadSetting(f"{self.name}.{field}", NOT_SHOWN, where, why)
        read = _parsed(value, setting, where) if isinstance(value, str) and not strict else value
        try:
            read = msgspec.convert(read, setting.annotation, strict=strict)
        except msgspec.ValidationError:
            raise BadSetting(setting.key, value, where, f"must be {setting.allowed}") from None
        return Stated(_checked(read, setting.described, setting.key, where), where)

    def made_of(self, stated: Mapping[str, Stated], base: S | None = None) -> S:
        """The settings `base` (the defaults) with the stated values. Values that contradict each other raise BadSetting."""
        try:
            return structs.replace(base or self.kind(), **{name: each.value for name, each in stated.items()})
        except ValueError as broken:
            raise self._contradiction(stated, str(broken)) from None

    def _contradiction(self, stated: Mapping[str, Stated], broken: str) -> BadSetting:
        """The error for values that contradict each other, as the text `broken` says.

        It shows the values of the fields that the text mentions and where they were set. If the text mentions none of
        the fields that were set, it shows all of these.
        """
        named = [field for field in dict.fromkeys(re.findall(r"\w+", broken)) if field in stated] or [*stated]
        first, *others = ((self.settings[field].key, stated[field]) for field in named)
        beside = "".join(f"; {key} is {shown(key, each.value)} ({each.where})" for key, each in others)
        key, each = first
        return BadSetting(key, each.value, each.where, f"{broken}{beside}")


@cache
def _settings_of(section: str, kind: type[Struct]) -> dict[str, Setting]:
    defaults, settings = kind(), {}
    for field in structs.fields(kind):
        described = inspect.type_info(field.type)
        assert isinstance(described, inspect.Metadata), f"{field.name} has no description"
        key = f"{section}.{field.name}".removeprefix(".")
        settings[field.name] = Setting(key, field.type, getattr(defaults, field.name), described)
    return settings


def require(holds: bool, what: str) -> None:  # noqa: FBT001 - a condition to check is not a switch
    """Raise ValueError with this text unless the condition holds. Used for settings that contradict each other."""
    if not holds:
        raise ValueError(what)


def text_of(value: object) -> str:
    """Write a setting's value as the text of an environment variable, from which it can be read again.

    An empty list is written as a comma, since an empty variable counts as not set.
    """
    return (",".join(value) or ",") if isinstance(value, tuple) else str(value)


def is_secret(key: str) -> bool:
    """Whether the value of this setting must not be shown."""
    return key.endswith(("password", "secret"))


def shown(key: str, value: object) -> str:
    """The value of a setting for error messages, without passwords."""
    return "***" if is_secret(key) else without_password(repr(value))


def without_password(text: str) -> str:
    """The text without the passwords of its URLs, also of such as are written wrongly."""
    hidden = _LOGIN.sub(r"\1:***@", text)
    hidden = _LOGIN_OF_NO_SCHEME.sub(":***@", hidden)
    hidden = _HOSTS.sub(_without_wrong_port, hidden)
    hidden = _PARAMETER.sub(r"\1***", hidden)
    return _PAIR_OF_SECRET.sub(r"\1***", hidden)


def _without_wrong_port(found: re.Match[str]) -> str:
    """Hides a port that is no number, and all that follows it: in `amqp://user:password` the host is missing."""
    hosts = ",".join(map(shown_host, found[2].split(",")))
    return found[0] if hosts == found[2] else f"{found[1]}{hosts}{found[3]}"


def near(name: str, known: Collection[str], otherwise: str = "") -> str:
    """What an error says for an unknown name: the known name that is like it, or else all of them, or `otherwise`."""
    similar = get_close_matches(name, known, 1)
    return f"did you mean {similar[0]}?" if similar else otherwise or f"known are {', '.join(known)}"


def _parsed(text: str, setting: Setting, where: str) -> object:
    """Parse the text of a variable or a flag: a list has commas, a table has pairs."""
    match setting.described.type:
        case inspect.VarTupleType():
            return [part for each in text.split(",") if (part := each.strip())]
        case inspect.DictType():
            return _pairs(text, setting, where)
        case inspect.BoolType():
            return _BOOLEANS.get(text.lower(), text)
    return text


def _pairs(text: str, setting: Setting, where: str) -> dict[str, str]:
    """Parse `cell=url` pairs, separated by commas or white space. A comma in a URL is written as %2C, but for those between
    its hosts.
    """
    form = setting.extra["metavar"]
    pairs: dict[str, str] = {}
    for pair in _split_pairs(text.strip(", \t\n")):
        name, equals, value = pair.partition("=")
        if not equals:
            # It may be a half of a URL whose password has a comma.
            told = re.sub(r".*@", "***@", pair) if "@" in pair or "@" not in text else "***"
            raise BadSetting(setting.key, told, where, f"write {form},{form}")
        if name in pairs:
            raise BadSetting(setting.key, name, where, f"this {form.partition('=')[0]} is named twice")
        pairs[name] = value
    return pairs


def _split_pairs(text: str) -> list[str]:
    """The texts of the pairs. Where a URL still names its hosts, a comma is not the end of a pair."""
    found: list[str] = []
    for separator, part in re.findall(r"([,\s]*)([^,\s]+)", text):
        is_next_host = separator == "," and not _NEXT_PAIR.match(part) and "@" not in part
        if found and is_next_host and _HOSTS_UNFINISHED.fullmatch(found[-1]):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found or [text]


def _checked(value: Any, kind: inspect.Type, key: str, where: str) -> Any:
    """Apply the check of a type, and those of a list's items and of a table's names and values."""
    match kind:
        case inspect.Metadata(extra={"check": check}):
            try:
                return check(value)
            except ValueError as wrong:
                raise BadSetting(key, value, where, str(wrong)) from None
        case inspect.Metadata(type=inner):
            return _checked(value, inner, key, where)
        case inspect.VarTupleType(item_type=item):
            return tuple(_checked(each, item, key, where) for each in value)
        case inspect.DictType(key_type=names, value_type=values):
            return {
                _checked(name, names, key, where): _checked(each, values, f"{key}.{name}", where)
                for name, each in value.items()
            }
    return value


# The few settings that change in a running process when its settings file is read again (`Section.reloaded`); all others need a restart.
#
# Settings are frozen. What is made of these few keeps a `SettingsFollower`, which is given the new ones.


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
