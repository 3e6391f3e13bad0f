"""The site's page client-reference, from the code: the client's methods, the arguments that they share, and errors."""

import inspect
import re
from collections.abc import AsyncGenerator, Iterator
from typing import Any, get_origin

from moor.client import (
    BuildFields,
    Client,
    ClientError,
    Listing,
    MoveFields,
    OrderFields,
    SentRequest,
    errors,
)
from moor.client.dead_letters import DeadLetterCalls
from moor.client.hosts import AggregateCalls, HostCalls
from moor.client.instances import ConsoleCalls, InstanceCalls, MoveCalls, PlanCalls
from moor.client.keeping import KeepingCalls
from moor.client.placement import PlacementCalls
from moor.client.requests import ClientSession
from moor.client.stored import StoredCalls

HEAD = """# The Python client: reference

Every method of `moor.client.Client`, from the code; `SyncClient` has the same ones. [client.md](client.md) explains them, with programs.
"""
SECTIONS: dict[str, type[object]] = {
    "Instances": InstanceCalls,
    "Moves and rebuilds": MoveCalls,
    "Consoles": ConsoleCalls,
    "Plans": PlanCalls,
    "What is stored under names": StoredCalls,
    "Hosts, nodes, cells, and the cloud": HostCalls,
    "Campaigns, movements and budgets": KeepingCalls,
    "Aggregates": AggregateCalls,
    "Placement's books": PlacementCalls,
    "Dead letters": DeadLetterCalls,
    "Events and audits": Client,
    "The connection": ClientSession,
    "A request that was sent": SentRequest,
    "A list": Listing,
}


def page() -> str:
    return "\n".join((HEAD, *_methods(), *_fields(), *_errors()))


def methods_of(kind: type[object]) -> dict[str, Any]:
    """The public methods that this class itself defines, in the order of the file."""
    return {name: each for name, each in vars(kind).items() if inspect.isfunction(each) and name[0] != "_"}


def _methods() -> Iterator[str]:
    for title, kind in SECTIONS.items():
        yield from (f"## {title}", "", "| method | |", "| --- | --- |")
        for name, method in methods_of(kind).items():
            yield f"| `{name}({_arguments(method)})`{_kind_of(method)} | {_in_a_cell(method.__doc__)} |"
        yield ""


def _kind_of(method: Any) -> str:
    made = get_origin(inspect.signature(method).return_annotation)
    return {AsyncGenerator: ", an iterator", Listing: ", a list"}.get(made, "")


def _arguments(method: Any) -> str:
    _, *parameters = inspect.signature(method).parameters.values()
    return ", ".join(_stars(parameters))


def _stars(parameters: list[inspect.Parameter]) -> Iterator[str]:
    has_star = False
    for each in parameters:
        if each.kind is inspect.Parameter.VAR_KEYWORD:
            yield f"**{each.annotation.__args__[0].__name__}"
        elif each.kind is inspect.Parameter.VAR_POSITIONAL:
            has_star = True
            yield f"*{each.name}"
        else:
            if each.kind is inspect.Parameter.KEYWORD_ONLY and not has_star:
                has_star = True
                yield "*"
            yield each.name if each.default is inspect.Parameter.empty else f"{each.name}={each.default!r}"


def _in_a_cell(text: str | None) -> str:
    assert text, "every method and error has a docstring"
    return " ".join(text.split()).replace("|", "\\|")


def _fields() -> Iterator[str]:
    yield from ("## Shared arguments", "", "| name | its arguments |", "| --- | --- |")
    for kind in (BuildFields, OrderFields, MoveFields):
        fields = ", ".join(f"`{name}`" for name in sorted(kind.__annotations__))
        yield f"| `{kind.__name__}` | {fields} |"
    yield ""


def _errors() -> Iterator[str]:
    yield from ("## Errors", "", "| error | is a | fields | raised |", "| --- | --- | --- | --- |")
    for kind in sorted_errors():
        fields = ", ".join(f"`{name}`" for name in fields_of(kind))
        yield f"| `{kind.__name__}` | `{kind.__bases__[0].__name__}` | {fields} | {_in_a_cell(kind.__doc__)} |"
    yield ""


def sorted_errors() -> list[type[ClientError]]:
    found = [
        each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, ClientError)
    ]
    return sorted(found, key=lambda each: [base.__name__ for base in reversed(each.__mro__)])


def fields_of(kind: type[ClientError]) -> list[str]:
    """The attributes that the constructors of an error set. All errors have `request_id`."""
    sources = [inspect.getsource(each) for each in reversed(kind.__mro__) if issubclass(each, ClientError)]
    found = [name for source in sources for name in re.findall(r"self\.(\w+) = ", source)]
    return [name for name in dict.fromkeys(("request_id", *found)) if name != "args"]
