"""Commands made of functions: the parameters of a function are the flags and the arguments of its command, as Click has them.

A parameter that is annotated with `option(...)` is a flag, and one with `argument(...)` an argument. One whose type is a Struct stands
for the fields of that Struct, each a flag: so what several commands have in common is said once.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from math import isnan
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin
from uuid import UUID

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from msgspec import NODEFAULT, Struct, structs

# Offers the shell words for the beginning of one.
Completer = Callable[[click.Context, click.Parameter, str], list[str]]
Function = Callable[..., None]
F = TypeVar("F", bound=Function | click.Command)

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}
REQUIRED = inspect.Parameter.empty


class Flag(Struct, frozen=True):
    """The annotation of a parameter. Without names, a flag is called as the parameter."""

    names: tuple[str, ...] = ()
    is_argument: bool = False
    help: str = ""
    metavar: str | None = None
    # The variable from which the value comes that the command line does not give.
    envvar: str | None = None
    min: float | None = None
    max: float | None = None
    show_default: bool = True
    completes: Completer | None = None
    # Is told the value before the command runs.
    notes: Callable[[click.Context, Any], Any] | None = None


def option(*names: str, **said: Any) -> Flag:
    return Flag(names, **said)


def argument(**said: Any) -> Flag:
    return Flag(is_argument=True, **said)


class FlagField(Struct, frozen=True):
    """A parameter of a function, or a field of a Struct that stands for one."""

    name: str
    kind: Any
    flag: Flag
    # A value, or a function that makes one.
    default: Any = REQUIRED


# The value of a flag: how it is read, and what is said of one that is wrong.


class FlagValue(click.ParamType[Any]):
    """A value, as `read` makes it of its text. `read` raises a ValueError that says what is allowed."""

    def __init__(self, name: str, read: Callable[[Any], Any], choices: Sequence[str] = ()) -> None:
        self.name = name
        self._read = read
        self._choices = choices

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value)
        except ValueError as wrong:
            why = str(wrong)
            text = why if repr(value) in why else f"{value!r} {why}"
            self.fail(text + _where_from(param, ctx), param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:  # noqa: ARG002 - Click names them
        return "|".join(self._choices) or None

    def shell_complete(
        self, _ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(each) for each in self._choices if each.startswith(incomplete)]


class _Switch(click.types.BoolParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as wrong:
            self.fail(wrong.message + _where_from(param, ctx), param, ctx)


def _where_from(param: click.Parameter | None, ctx: click.Context | None) -> str:
    """The settings file, if the value is from there."""
    if (
        param is None
        or ctx is None
        or ctx.get_parameter_source(param.name) is not ParameterSource.DEFAULT_MAP
    ):
        return ""
    return f" ({ctx.find_root().obj})"


def _number(kind: type[int | float], low: float | None, high: float | None) -> Callable[[Any], Any]:
    def read(given: Any) -> int | float:
        try:
            # A setting in a file is a number already, but perhaps of the other kind.
            number = kind(str(given))
        except ValueError:
            raise ValueError(f"is not a {'whole ' if kind is int else ''}number") from None
        if isnan(number):
            raise ValueError("is not a number")
        if (low is not None and number < low) or (high is not None and number > high):
            raise ValueError(f"must be {_range(low, high)}")
        return number

    return read


def _range(low: float | None, high: float | None) -> str:
    least = "" if low is None else f"at least {low:,}"
    most = "" if high is None else f"at most {high:,}"
    return " and ".join(filter(None, (least, most)))


def _one_of(choices: Sequence[str], kind: Callable[[str], Any]) -> Callable[[Any], Any]:
    def read(given: Any) -> Any:
        if given not in choices:
            raise ValueError(f"is none of {', '.join(choices)}")
        return kind(given)

    return read


def _path(given: Any) -> Path:
    if "\0" in str(given):
        raise ValueError("is no path: it contains the character NUL")
    return Path(given)


def _type_of(kind: Any, flag: Flag) -> click.ParamType[Any]:
    if choices := _values_of(kind):
        return FlagValue("choice", _one_of(choices, kind if isinstance(kind, type) else str), choices)
    if kind is bool:
        return _Switch()
    if kind in (int, float):
        return FlagValue("integer" if kind is int else "number", _number(kind, flag.min, flag.max))
    return {Path: FlagValue("path", _path), UUID: FlagValue("uuid", read_uuid)}.get(kind, click.STRING)


def _values_of(kind: Any) -> Sequence[str]:
    """The values of an enumeration, or of a type that lists them."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [each.value for each in kind]
    return get_args(kind) if get_origin(kind) is Literal else ()


def read_uuid(text: Any) -> UUID:
    try:
        return text if isinstance(text, UUID) else UUID(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a UUID") from None


# The parameters of a command, from those of a function.


def _bare(kind: Any) -> tuple[Any, bool]:
    """The type without null, and whether there may be several of it."""
    if NoneType in get_args(kind):
        (kind,) = [each for each in get_args(kind) if each is not NoneType]
    return (get_args(kind)[0], True) if get_origin(kind) is list else (kind, False)


def _parameter(field: FlagField) -> click.Parameter:
    flag, name = field.flag, field.name
    kind, is_several = _bare(field.kind)
    range_ = _range(flag.min, flag.max)
    said: dict[str, Any] = {
        "type": _type_of(kind, flag),
        "required": field.default is REQUIRED,
        "metavar": flag.metavar,
        "help": f"{flag.help} ({range_})" if range_ and flag.show_default else flag.help,
        "envvar": flag.envvar,
        "callback": _callback(flag, is_several=is_several),
        "shell_complete": flag.completes,
    }
    if not said["required"]:
        said["default"] = field.default.value if isinstance(field.default, Enum) else field.default
    if flag.is_argument:
        if not said["required"]:
            said["metavar"] = f"[{flag.metavar or name.upper()}]"
        return click.Argument([name], nargs=-1 if is_several else 1, **said)
    named = "--" + name.strip("_").replace("_", "-")
    if kind is bool:
        said |= {"is_flag": True}
        named = f"{named}/--no-{named.removeprefix('--')}"
    return click.Option(
        [*(flag.names or (named,)), name],
        multiple=is_several,
        show_default=flag.show_default and field.default != "",
        show_envvar=True,
        **said,
    )


def _callback(flag: Flag, *, is_several: bool) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def given(context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        if is_several:
            value = list(value or ()) or None
        return value if flag.notes is None else flag.notes(context, value)

    return given


def _field(name: str, annotation: Any, default: Any) -> FlagField:
    said = get_args(annotation) if get_origin(annotation) is Annotated else ()
    kind, flag = said[:2] if said else (annotation, Flag(is_argument=default is REQUIRED))
    return FlagField(name, kind, flag, default)


def fields_of(group: type[Struct]) -> list[FlagField]:
    """The flags of a group of flags."""
    found = []
    for each in structs.fields(group):
        default = each.default if each.default is not NODEFAULT else REQUIRED
        found.append(_field(each.name, each.type, default))
    return found


def command(
    function: Function,
    name: str | None = None,
    *,
    help: str | None = None,  # noqa: A002 - as Click calls it
    fields: Callable[[type[Struct]], Sequence[FlagField]] = fields_of,
) -> click.Command:
    """The command that calls this function. `fields` are those of a parameter whose type is a Struct."""
    # Groups may have flags in common.
    parameters: dict[str, FlagField] = {}
    groups: dict[str, tuple[type[Struct], list[str]]] = {}
    for each in inspect.signature(function).parameters.values():
        if isinstance(each.annotation, type) and issubclass(each.annotation, Struct):
            several = {one.name: one for one in fields(each.annotation)}
            parameters |= several
            groups[each.name] = (each.annotation, [*several])
        else:
            parameters[each.name] = _field(each.name, each.annotation, each.default)

    own = parameters.keys() - {name for _, named in groups.values() for name in named}

    def called(**given: Any) -> None:
        read = {of: kind(**{field: given[field] for field in named}) for of, (kind, named) in groups.items()}
        function(**{name: value for name, value in given.items() if name in own}, **read)

    return click.Command(
        name,
        callback=called,
        params=[*map(_parameter, parameters.values())],
        help=help or inspect.cleandoc(function.__doc__ or ""),
        context_settings=CONTEXT,
    )


class Commands(click.Group):
    """Commands about one thing. `moor host list` is the verb `list` of the group `host`."""

    # What commands of an earlier release are now, without `moor`.
    MOVED: ClassVar[dict[str, str]] = {}

    def __init__(self, help: str, *, otherwise: str = "") -> None:  # noqa: A002 - as Click calls it
        """`otherwise` is the verb that is meant where the first word is none: `moor history web` is `moor history show web`."""
        super().__init__(help=help, no_args_is_help=True, context_settings=CONTEXT)
        self._otherwise = otherwise

    def verb(self, name: str = "", *, help: str | None = None) -> Callable[[F], F]:  # noqa: A002 - as Click calls it
        """Add this command; or the one that calls this function, which has its name if none is given."""

        def added(function: F) -> F:
            if isinstance(function, click.Command):
                self.add_command(function, name)
            else:
                self.add_command(command(function, name or function.__name__.replace("_", "-"), help=help))
            return function

        return added

    def without_verb(self, function: F) -> F:
        """Call this function, or that of this command, where the group is named without a verb."""
        alone = function if isinstance(function, click.Command) else command(function)
        self.params = alone.params
        self.no_args_is_help, self.invoke_without_command = False, True

        def called(**given: Any) -> None:
            if click.get_current_context().invoked_subcommand is None and alone.callback is not None:
                alone.callback(**given)

        self.callback = called
        return function

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        items = super().shell_complete(ctx, incomplete)
        for each in self.commands[self._otherwise].params[:1] if self._otherwise else ():
            items += each.shell_complete(ctx, incomplete)
        return items

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return [*self.commands]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as wrong:
            if self._otherwise:
                return self._otherwise, self.commands[self._otherwise], args
            before = " ".join([*ctx.command_path.split()[1:], wrong.command_name])
            if (now := self.MOVED.get(before)) is not None:
                ctx.fail(f"`moor {before}` is `moor {now}` now")
            raise

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_commands(formatter, "Commands", {name: each.help or "" for name, each in self.commands.items()})


def write_commands(formatter: click.HelpFormatter, heading: str, helps: Mapping[str, str]) -> None:
    """List commands, each with the first paragraph of its help."""
    with formatter.section(heading):
        formatter.write_dl([(name, first_paragraph(text)) for name, text in helps.items()])


def first_paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())
