"""Is a body, or a query, what its schema says? If not, a 400 that names the place and the value.

Two validators read the same schema. One is compiled, and says in a few microseconds whether it holds; the other is slow,
and says what is wrong with what does not, in the words that clients of Placement are used to.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any
from uuid import UUID

import fastjsonschema
import jsonschema
import msgspec
from jsonschema.validators import extend
from msgspec import Struct

from placement_worker.api.problems import DETAIL_CHARACTERS_MAX, ApiError, bad_request
from placement_worker.api.schemas import Schema
from placement_worker.api.versions import Version

# What is wrong with a large body is said by whoever judged it, in fewer words: to look for the best ones, and to lay out a
# body for reading, takes a thousand times as long as to judge it.
LAID_OUT_BYTES_MAX = 8_192
SHOWN_CHARACTERS_MAX = 200
_BODY = "JSON does not validate"
_QUERY = "Invalid query string parameters"


_Problem = fastjsonschema.JsonSchemaValueException


class Validator:
    """A schema, and whoever judges by it; these are made when first asked for."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def body(self, text: bytes) -> Any:
        """What a body says."""
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise bad_request(f"Malformed JSON: {problem}") from None
        # Databases keep no such character.
        if b"\\u0000" in text:
            _check_nul(value)
        self.check(value, len(text))
        return value

    def check(self, value: object, size: int = 0) -> None:
        """The same of what is JSON no more."""
        if (problem := self._problem(value)) is not None:
            raise self._refusal(value, problem, _BODY, size)

    def query(self, query: Sequence[tuple[str, str]]) -> dict[str, str]:
        """The keys and values of a query; of a key that is repeated the last."""
        value = dict(query)
        for key, text in query:
            if "\0" in key or "\0" in text:
                raise bad_request(f"{_QUERY}: {key!r} is {text!r}, with the character NUL in it")
        if (problem := self._problem(value)) is not None:
            raise self._refusal(value, problem, _QUERY, sum(len(text) for _, text in query))
        return value

    def allows(self, value: object) -> bool:
        return self._problem(value) is None

    def _problem(self, value: object) -> _Problem | RecursionError | None:
        try:
            self._judge(value)
        except (_Problem, RecursionError) as problem:
            # Its traceback leads to the frame that keeps it: in such a circle a body of megabytes would wait for a collector
            # that counts objects, and comes after thousands of requests.
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
            return bad_request(f"{saying}: it goes too deep")
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
    """The forms of one thing, by the version that each came with."""

    def __init__(self, *of: tuple[Version, Schema]) -> None:
        self.by_version = tuple(
            (since, Validator(schema)) for since, schema in sorted(of, key=lambda one: one[0])
        )
        self._found: dict[Version, Validator] = {}

    def at(self, version: Version) -> Validator:
        """The last one that came until this version."""
        validator = self._found.get(version)
        if validator is None:
            validator = [validator for since, validator in self.by_version if since <= version][-1]
            self._found[version] = validator
        return validator


def _briefly(problem: _Problem) -> str:
    value = problem.value
    if problem.rule == "additionalProperties":
        # Its message has all of them, in the order of a set.
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
    """Thirty-two digits, with hyphens and in a case as anyone may write them."""
    try:
        return UUID(text)
    except ValueError:
        return None


def is_uuid(text: object) -> bool:
    return isinstance(text, str) and uuid_in(text) is not None


def _check_nul(value: object) -> None:
    try:
        found = _with_nul(value)
    except RecursionError:
        raise bad_request(f"{_BODY}: it goes too deep") from None
    if found is not None:
        at = max(0, found.text.index("\0") - SHOWN_CHARACTERS_MAX // 2)
        shown = found.text[at : at + SHOWN_CHARACTERS_MAX]
        where = f"{found.what}${''.join(reversed(found.steps))}"
        raise bad_request(f"{_BODY}: {where} is {shown!r}, with the character NUL in it")


class _WithNul(Struct):
    """A text of the body. The steps lead to it, the last one first: a path is put together for the one that is found, since
    keys may be megabytes long, and beside tens of thousands of values.
    """

    text: str
    steps: list[str]
    what: str = ""


def _with_nul(value: object) -> _WithNul | None:
    match value:
        case str() if "\0" in value:
            return _WithNul(value, [])
        case list():
            for position, item in enumerate(value):
                if (found := _with_nul(item)) is not None:
                    found.steps.append(f"[{position}]")
                    return found
        case dict():
            for key, item in value.items():
                if "\0" in key:
                    return _WithNul(key, [], "a key of ")
                if (found := _with_nul(item)) is not None:
                    found.steps.append(f".{key[:SHOWN_CHARACTERS_MAX]}")
                    return found
        case _:
            pass
    return None


def _ending_exactly(schema: Any) -> Any:
    """The same for a judge that lets a key end in a line break where its pattern ends in `$`."""
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
    """As JSON Schema has it: the end is the end, and not before a last line break."""
    if isinstance(value, str) and not re.search(_exact(pattern), value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


# All that the explainer takes for good and the judge does not.
_AT_ITS_END = jsonschema.ValidationError("one of its keys ends in a line break")
_FORMATS = jsonschema.FormatChecker(())
_FORMATS.checks("uuid")(is_uuid)
_Explainer: Any = extend(jsonschema.Draft202012Validator, {"pattern": _matches})  # type: ignore[no-untyped-call]
