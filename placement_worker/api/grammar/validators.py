"""Does a body or a query match its schema? If not, the client gets a 400 that names the place and the value.

Two validators read the same schema. A compiled one decides in a few microseconds whether it matches. If it does not, a slow
one says what is wrong, in the words that Placement's clients know.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from uuid import UUID

import fastjsonschema
import jsonschema
import msgspec
from jsonschema.validators import extend

from placement_worker.api.values.problems import DETAIL_CHARACTERS_MAX, ApiError, bad_request
from placement_worker.api.values.versions import Version

# For larger bodies the fast validator's shorter message is used: to find the best message, and to print a body for people,
# takes a thousand times as long as to decide.
LAID_OUT_BYTES_MAX = 8_192
SHOWN_CHARACTERS_MAX = 200
_BODY = "JSON does not validate"
_QUERY = "Invalid query string parameters"


Schema = dict[str, Any]
# The schemas of one kind of body or query, by the version that introduced each.
Schemas = Mapping[Version, Schema]

_Problem = fastjsonschema.JsonSchemaValueException


class Validator:
    """Checks a body or a query against one schema: by a compiled validator first, and by a slow one with better error
    texts if that finds a problem. Both are made when they are first needed.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def body(self, text: bytes) -> Any:
        """Decode and check a body."""
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise bad_request(f"Malformed JSON: {problem}") from None
        # Databases cannot store this character.
        if b"\\u0000" in text:
            _check_nul(value)
        self.check(value, len(text))
        return value

    def check(self, value: object, size: int = 0) -> None:
        """Check a value that is decoded already."""
        if (problem := self._problem(value)) is not None:
            raise self._refusal(value, problem, _BODY, size)

    def query(self, query: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Check a query; returns its keys and values. If a key is repeated, its last value counts."""
        value = dict(query)
        for key, text in query:
            if "\0" in key or "\0" in text:
                raise bad_request(f"{_QUERY}: {key!r} is {text!r}; the character NUL is not allowed")
        if (problem := self._problem(value)) is not None:
            raise self._refusal(value, problem, _QUERY, sum(len(text) for _, text in query))
        return value

    def allows(self, value: object) -> bool:
        return self._problem(value) is None

    def _problem(self, value: object) -> _Problem | RecursionError | None:
        try:
            self._judge(value)
        except (_Problem, RecursionError) as problem:
            # Without its traceback: that refers to this frame, and the frame to the problem. Such a cycle would keep megabytes
            # until the garbage collector runs, which counts objects and comes only after thousands of requests.
            return problem.with_traceback(None)
        return None

    def _refusal(self, value: object, problem: _Problem | RecursionError, saying: str, size: int) -> ApiError:
        try:
            said = (
                str(next(self._explainer.iter_errors(value), _AT_ITS_END))
                if size <= LAID_OUT_BYTES_MAX or isinstance(problem, RecursionError)
                else _briefly(problem)
            )
        except RecursionError:
            return bad_request(f"{saying}: it is nested too deeply")
        return bad_request(f"{saying}: {said}")

    @cached_property
    def _judge(self) -> Callable[[object], object]:
        judge: Callable[[object], object] = fastjsonschema.compile(
            _ending_exactly(self.schema), formats={"uuid": is_uuid}
        )
        return judge

    @cached_property
    def _explainer(self) -> Any:
        return _Explainer(self.schema, format_checker=_FORMATS)


class VersionedValidators:
    """The validators of one kind of body or query, for all versions of the API."""

    def __init__(self, schemas: Schemas) -> None:
        self._newest_first = tuple(
            (since, Validator(schema)) for since, schema in sorted(schemas.items(), reverse=True)
        )

    def at(self, version: Version) -> Validator:
        """The validator that applies to this version."""
        return next(validator for since, validator in self._newest_first if since <= version)


def _briefly(problem: _Problem) -> str:
    value = problem.value
    if problem.rule == "additionalProperties":
        # The validator's own message lists all properties, in the order of a set.
        return f"{problem.name} has properties that are not allowed"
    match value:
        case list() | dict():
            got = f"{len(value)} of them"
        case str():
            got = repr(value[:SHOWN_CHARACTERS_MAX])
        case _:
            got = repr(value)[:SHOWN_CHARACTERS_MAX]
    return f"{problem.message[:DETAIL_CHARACTERS_MAX]}. Got: {got}"


def uuid_in(text: str) -> UUID | None:
    """Parse a UUID in any case, with hyphens anywhere; None if the text is no UUID."""
    try:
        return UUID(text)
    except ValueError:
        return None


def is_uuid(text: object) -> bool:
    return isinstance(text, str) and uuid_in(text) is not None


def _check_nul(value: object) -> None:
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str() as text if "\0" in text:
                raise bad_request(f"{_BODY}: the character NUL is not allowed")
            case list() as items:
                waiting += items
            case dict() as items:
                waiting += [*items, *items.values()]


def _ending_exactly(schema: Any) -> Any:
    r"""A copy of the schema for the compiled validator, in which `\Z` replaces `$` at the end of patterns.

    In Python, `$` also matches before a line break at the end.
    """
    match schema:
        case dict():
            return {
                key: (
                    {_exact(pattern): _ending_exactly(row) for pattern, row in value.items()}
                    if key == "patternProperties"
                    else _ending_exactly(value)
                )
                for key, value in schema.items()
            }
        case list():
            return [_ending_exactly(one) for one in schema]
        case _:
            return schema


def _exact(pattern: str) -> str:
    return pattern.replace("$", r"\Z")


def _matches(_: object, pattern: str, value: object, __: object) -> Iterator[jsonschema.ValidationError]:
    r"""Check a JSON schema's `pattern` with `\Z` in place of `$`, which would also match before a line break at the end."""
    if isinstance(value, str) and not re.search(_exact(pattern), value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


# The message for what the slow validator accepts and the fast one does not.
_AT_ITS_END = jsonschema.ValidationError("one of its keys ends in a line break")
_FORMATS = jsonschema.FormatChecker(())
_FORMATS.checks("uuid")(is_uuid)
_Explainer: Any = extend(jsonschema.Draft202012Validator, {"pattern": _matches})  # type: ignore[no-untyped-call]
