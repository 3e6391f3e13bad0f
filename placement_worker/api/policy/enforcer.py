"""Reads and judges rules by oslo.policy, and serves oslo's `oslopolicy-*` tools. No other module imports oslo.policy.

oslo.policy only logs a rule that it cannot read, denies every request by it, and starts. Its `check_rules` looks for
missing and circular rules, but not behind `not`, where a missing rule allows everything. So `read_rules` checks the
parsed rules itself.
"""

import ast
import logging
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Final

from oslo_config import cfg
from oslo_policy import policy as oslo

from placement_worker.api.policy.defaults import DOCUMENTED, LEGACY
from placement_worker.api.policy.policy import BadPolicyError

# A rule may compare these values of the caller, with a word or with these values of the request.
_OF_CALLER: Final = ("role", "rule", "project_id", "user_id", "system_scope")
_OF_REQUEST: Final = {"project_id": "p", "user_id": "u"}
_OPERATORS: Final = frozenset(("and", "or", "not"))


def read_rules(rules: Mapping[str, str]) -> oslo.Enforcer:
    """Check these rules, and make an enforcer that judges by them.

    Raises BadPolicyError for a rule that cannot be read, that refers to a missing one, or that refers to itself.

    The enforcer has a configuration of its own and never reads a file again: a file that an operator edits while the
    server runs would take effect unchecked.
    """
    # It logs a traceback for what is refused here in one line.
    logging.getLogger("oslo_policy").setLevel(logging.CRITICAL)
    referred = {name: _referred_rules(name, text) for name, text in rules.items()}
    for name, others in referred.items():
        for missing in sorted(others - rules.keys()):
            raise BadPolicyError(f"{name} is {rules[name]!r}: there is no rule {missing!r}")
    try:
        TopologicalSorter(referred).prepare()
    except CycleError as problem:
        raise BadPolicyError(f"these rules ask each other in a circle: {problem.args[1]}") from None
    return oslo.Enforcer(cfg.ConfigOpts(), rules=oslo.Rules.from_dict(dict(rules)), use_conf=False)


def list_rules() -> list[oslo.RuleDefault]:
    """The rules of OpenStack's Placement with their texts, for oslo's tools (entry point `oslo.policy.policies`)."""
    return [_rule_default(name, *texts) for name, texts in DOCUMENTED.items()]


def get_enforcer() -> oslo.Enforcer:
    """Make a policy enforcer for oslo's tools, which find this function by the entry point `oslo.policy.enforcer`.

    The service never calls it: the enforcer reads oslo's global configuration, which only those tools fill.
    """
    enforcer = oslo.Enforcer(cfg.CONF)
    enforcer.register_defaults(list_rules())
    return enforcer


def _rule_default(name: str, description: str, *requests: str) -> oslo.RuleDefault:
    if not requests:
        return oslo.RuleDefault(name, LEGACY[name], description)
    operations = [
        oslo.Operation(method=method, path=path)
        for method, path in (request.split(" ", 1) for request in requests)
    ]
    return oslo.DocumentedRuleDefault(name, LEGACY[name], description, operations, scope_types=["project"])


def _referred_rules(name: str, text: str) -> frozenset[str]:
    parsed = oslo.RuleDefault(name, text).check
    # What oslo.policy cannot read becomes `!`, in part or whole; otherwise the words stay what they were.
    if text and _words(str(parsed)) != _words(text):
        raise BadPolicyError(
            f"{name} is {text!r}: oslo.policy cannot read it. Write kind:value, @ or !, joined by and, or, not, (...)"
        )
    checks = [check for check in _checks(parsed) if isinstance(check, oslo.Check)]
    for check in checks:
        if reason := _refusal(check):
            raise BadPolicyError(f"{name} is {text!r}: {reason}")
    return frozenset(check.match for check in checks if isinstance(check, oslo.RuleCheck))


def _words(text: str) -> list[str]:
    """Split the text of a rule into words, to compare rules regardless of parentheses and of the case of operators.

    It splits as oslo.policy does: parentheses count only around a word.
    """
    words = (word.strip("()") for word in text.split())
    return [word.lower() if word.lower() in _OPERATORS else word for word in words if word]


def _checks(parsed: object) -> Iterator[object]:
    match parsed:
        case oslo.AndCheck() | oslo.OrCheck():
            for part in parsed.rules:
                yield from _checks(part)
        case oslo.NotCheck():
            yield from _checks(parsed.rule)
        case _:
            yield parsed


def _refusal(check: oslo.Check) -> str:
    """Why a policy may not contain this check; empty if it may."""
    if check.kind in ("http", "https"):
        return f"{str(check)!r} asks another server, which would hold up every request; remote checks are refused"
    if check.kind not in _OF_CALLER and not _is_literal(check.kind):
        return f"{str(check)!r} checks {check.kind!r}; it must be one of {', '.join(_OF_CALLER)}, or a quoted word"
    try:
        has_value = check.kind == "rule" or check.match % _OF_REQUEST
    except (KeyError, TypeError, ValueError):
        has_value = ""
    if has_value:
        return ""
    return f"{str(check)!r} compares with {check.match!r}; it must be a word, %(project_id)s or %(user_id)s"


def _is_literal(kind: str) -> bool:
    try:
        ast.literal_eval(kind)
    except (SyntaxError, ValueError):
        return False
    return True
