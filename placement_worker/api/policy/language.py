"""The language of OpenStack's policy files, as far as it applies here.

    role:admin                     the caller has this role
    rule:admin_api                 the other rule holds
    project_id:%(project_id)s      the caller's project is the one that the request is about
    user_id:6f0a                   the caller is this user; 'a word':%(user_id)s compares the word
    not X, X and Y, X or Y, (X)    `and` binds closer than `or`
    @ and the empty rule           always
    !                              never

A rule is parsed once, into functions. Remote checks (http:) and the old lists of lists are refused by the parser.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from placement_worker.api.request import Caller

# The project and the user that the request is about.
Target = Mapping[str, str]


class Rule(Struct, frozen=True):
    """A parsed rule: whether it holds, and the names of the rules that it refers to."""

    holds: Callable[[Caller, Target, "Rules"], bool]
    asks: frozenset[str] = frozenset()


Rules = Mapping[str, Rule]


class BadRuleError(ValueError):
    """A text that is not a rule."""


_WORD: Final = re.compile(r"\s*([()]|'[^']*':\S*[^\s)]|\"[^\"]*\":\S*[^\s)]|[^\s()]*%\(\w+\)s|[^\s()]+)")
_REFERENCE: Final = re.compile(r"%\((\w+)\)s")
_TARGETS: Final = frozenset(("project_id", "user_id"))

ALWAYS: Final = Rule(lambda _caller, _target, _rules: True)
NEVER: Final = Rule(lambda _caller, _target, _rules: False)


def read_rule(text: str) -> Rule:
    """Parse a rule. Raises BadRuleError, which says what is wrong."""
    if not text.strip():
        return ALWAYS
    words = list(_words(text))
    rule = _either(words)
    if words:
        raise BadRuleError(f"{text!r} goes on with {words[0]!r}; expected the end, `and` or `or`")
    return rule


def _words(text: str) -> Iterator[str]:
    text = text.strip()
    at = 0
    while at < len(text):
        found = _WORD.match(text, at)
        assert found, f"every character is part of some word: {text[at:]!r}"
        yield found[1]
        at = found.end()


def _either(words: list[str]) -> Rule:
    rules = [_both(words)]
    while words and words[0].lower() == "or":
        words.pop(0)
        rules.append(_both(words))
    if len(rules) == 1:
        return rules[0]
    return Rule(lambda c, t, r: any(rule.holds(c, t, r) for rule in rules), _asked(rules))


def _both(words: list[str]) -> Rule:
    rules = [_one(words)]
    while words and words[0].lower() == "and":
        words.pop(0)
        rules.append(_one(words))
    if len(rules) == 1:
        return rules[0]
    return Rule(lambda c, t, r: all(rule.holds(c, t, r) for rule in rules), _asked(rules))


def _one(words: list[str]) -> Rule:
    if not words:
        raise BadRuleError("it ends where a check is expected")
    word = words.pop(0)
    if word.lower() == "not":
        negated = _one(words)
        return Rule(lambda c, t, r: not negated.holds(c, t, r), negated.asks)
    if word == "(":
        inner = _either(words)
        if not words or words.pop(0) != ")":
            raise BadRuleError("a parenthesis is not closed")
        return inner
    return _check(word)


def _check(word: str) -> Rule:
    if word == "@":
        return ALWAYS
    if word == "!":
        return NEVER
    kind, colon, value = word.rpartition(":") if word[0] in "'\"" else word.partition(":")
    if not colon or not value:
        raise BadRuleError(f"{word!r} is not a check: write kind:value, @ or !")
    if kind in ("role", "rule") and "%(" in value:
        raise BadRuleError(f"{word!r}: a {kind} must be written out, not taken from the request")
    match kind:
        case "role":
            return Rule(lambda caller, _t, _r: value.lower() in caller.roles)
        case "rule":
            return Rule(lambda c, t, rules: rules[value].holds(c, t, rules), frozenset((value,)))
        case "project_id" | "user_id" | "system_scope":
            return _compared(lambda caller: _said_by(caller, kind), value)
        case _ if kind[0] in "'\"" and kind[-1] == kind[0]:
            return _compared(lambda _caller: kind[1:-1], value)
    raise BadRuleError(
        f"{word!r} checks {kind!r}, which is not one of role, rule, project_id, user_id, system_scope, or a quoted word"
    )


def _compared(ours: Callable[[Caller], str], value: str) -> Rule:
    """An empty value never matches: a caller without a project owns nothing that has no project."""
    reference = _REFERENCE.fullmatch(value)
    if reference is None:
        if "%(" in value:
            raise BadRuleError(f"{value!r} is not a reference: write %(project_id)s or %(user_id)s")
        return Rule(lambda caller, _t, _r: ours(caller) == value)
    name = reference[1]
    if name not in _TARGETS:
        raise BadRuleError(
            f"{value!r} refers to {name!r}; only project_id and user_id of a request can be referred to"
        )
    return Rule(lambda caller, target, _r: bool(said := ours(caller)) and said == target.get(name))


def _said_by(caller: Caller, kind: str) -> str:
    match kind:
        case "project_id":
            return caller.project
        case "user_id":
            return caller.user
        case _:
            return caller.system_scope


def _asked(rules: list[Rule]) -> frozenset[str]:
    return frozenset().union(*(rule.asks for rule in rules))
