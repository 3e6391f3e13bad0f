"""Options that belong together are the fields of a Struct, and a command names that Struct as one parameter."""

from collections.abc import Callable
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from typing import Any

from msgspec import Struct, structs


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command for typer: in place of each parameter whose type is a Struct, it has that Struct's fields as options."""
    parameters = signature(command).parameters.values()
    groups: dict[str, type[Struct]] = {
        each.name: each.annotation
        for each in parameters
        if isinstance(each.annotation, type) and issubclass(each.annotation, Struct)
    }

    def with_fields(**given: Any) -> None:
        read = {
            name: group(**{field: given.pop(field) for field in group.__struct_fields__})
            for name, group in groups.items()
        }
        command(**given, **read)

    flat: list[Parameter] = []
    for each in parameters:
        if each.name in groups:
            flat += map(_option, structs.fields(groups[each.name]))
        else:
            flat.append(each.replace(kind=Parameter.KEYWORD_ONLY))
    update_wrapper(with_fields, command)
    # typer reads this.
    with_fields.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    return with_fields


def _option(field: structs.FieldInfo) -> Parameter:
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
