"""A policy: all rules are read and checked at the start, and each request is judged by them."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Final

import yaml

from placement_worker.api.policy.defaults import LEGACY, OPEN, SECURE
from placement_worker.api.values.problems import ApiError
from placement_worker.api.values.request import Caller

BY_NAME: Final[Mapping[str, Mapping[str, str]]] = {"legacy": LEGACY, "secure": SECURE, "open": OPEN}

# How many judgements are cached, for a rule, a caller and a project each.
JUDGED_MAX: Final = 4_096
PROJECT_CHARACTERS_MAX: Final = 255


class BadPolicyError(ValueError):
    """An invalid policy; says where, which rule, and why."""


class Policy:
    def __init__(self, rules: Mapping[str, str]) -> None:
        """Read and check all rules.

        Raises BadPolicyError for a rule that cannot be read, that refers to a missing one, or that refers to itself.
        """
        from placement_worker.api.policy.enforcer import read_rules  # noqa: PLC0415 - only where the API is served

        self._enforcer = read_rules(rules)
        # There are few callers, and each repeats the same requests.
        self._allows = lru_cache(maxsize=JUDGED_MAX)(self._judged)

    def check(self, rule: str, caller: Caller, query: Sequence[tuple[str, str]]) -> None:
        """Raises ApiError 403 if the rule does not allow the caller this request.

        The request is about the project that its query names, as in GET /usages; without one, about the caller's own. If
        a query names several projects, the caller must be allowed all of them, since handlers read one of them. A caller
        that acts on the whole system has no project, and everything in placement belongs to projects: it is refused.
        """
        named = [value for key, value in query if key == "project_id"] or [caller.project]
        if not all(self._is_allowed(rule, caller, project) for project in named):
            roles = ", ".join(sorted(caller.roles)) or "no role"
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                f"Policy does not allow {rule} to user {caller.user!r} with {roles}"
                + (" and a token for the system" if caller.system_scope else ""),
            )

    def _is_allowed(self, rule: str, caller: Caller, project: str) -> bool:
        """Judge the request, or take the cached judgement of an equal one.

        The cache does not keep names that are too long for a project's: they may be as long as a request.
        """
        allows = self._allows if len(project) <= PROJECT_CHARACTERS_MAX else self._judged
        return allows(rule, caller, project)

    def _judged(self, rule: str, caller: Caller, project: str) -> bool:
        if caller.system_scope:
            return False
        target = _present(project_id=project, user_id=caller.user)
        credentials = {
            **_present(project_id=caller.project, user_id=caller.user),
            "roles": sorted(caller.roles),
        }
        return bool(self._enforcer.enforce(rule, target, credentials))


def _present(**values: str) -> dict[str, str]:
    """The values that are not empty.

    Rules compare values: a caller without a project would otherwise own everything that has no project.
    """
    return {name: value for name, value in values.items() if value}


def policy_named(name: str) -> Policy:
    """The policy that an operator names: `legacy`, `secure`, `open`, or the path of a YAML or JSON file.

    The rules of a file replace those of `legacy` one by one.
    """
    if name in BY_NAME:
        return Policy(BY_NAME[name])
    overrides = _file(Path(name))
    if unknown := sorted(name for name in overrides if name.startswith("placement:") and name not in LEGACY):
        raise BadPolicyError(f"{name}: there is no rule {unknown[0]!r}; placement would never use it")
    try:
        return Policy({**LEGACY, **overrides})
    except BadPolicyError as problem:
        raise BadPolicyError(f"{name}: {problem}") from None


def _file(path: Path) -> Mapping[str, str]:
    try:
        written = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise BadPolicyError(
            f"policy is {str(path)!r}: it must be {', '.join(BY_NAME)}, or a file that can be read: {problem}"
        ) from None
    if written is None:
        return {}
    if not isinstance(written, dict):
        raise BadPolicyError(
            f"{path}: it is a {type(written).__name__}, and must be a mapping of names to rules"
        )
    for name, rule in written.items():
        if not isinstance(name, str) or not isinstance(rule, str):
            raise BadPolicyError(f"{path}: {name!r} is {rule!r}; both must be strings")
    return written
