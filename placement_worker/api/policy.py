"""Decides by named rules, before a handler runs, whether the caller may make this request.

The rules have upstream's names and defaults, and oslo.policy reads and judges them: upstream's policy files mean the
same here, and the `oslopolicy-*` tools work on them. The library costs 0.2 s of CPU at its import and some microseconds a
judgement. So it is imported where it is used, by a process that serves the API alone, and Policy caches its answers.
"""

# ruff: noqa: PLC0415 - see above

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from placement_worker.api.values import ApiError, Caller

if TYPE_CHECKING:
    from oslo_policy.policy import Enforcer, RuleDefault

# Upstream's rules by name: the requests that each one guards, and its default text.
#
# *secure* is what upstream calls the new defaults. *legacy* also allows what upstream's old defaults allowed; the two differ
# only where upstream has narrowed a rule to services.


# Endpoints ask the rules named placement:...; those rules refer to the others.
ENDPOINT: Final = "placement:"

# What each rule allows, then the requests that ask it.
DOCUMENTED: Final[Mapping[str, tuple[str, ...]]] = {
    "admin_api": ("The caller is an administrator.",),
    "service_api": ("The caller is a service.",),
    "admin_or_service_api": ("The caller is an administrator or a service.",),
    "project_reader_api": ("The caller reads for the project that the request names.",),
    "admin_or_project_reader_or_service_api": (
        "The caller is an administrator or a service, or reads for the project that the request names.",
    ),
    "placement:allocation_candidates:list": (
        "Find providers that fit a request.",
        "GET /allocation_candidates",
    ),
    "placement:allocations:delete": ("Release a consumer.", "DELETE /allocations/{consumer_uuid}"),
    "placement:allocations:list": ("Show what a consumer holds.", "GET /allocations/{consumer_uuid}"),
    "placement:allocations:manage": ("Replace what several consumers hold.", "POST /allocations"),
    "placement:allocations:update": (
        "Replace what one consumer holds.",
        "PUT /allocations/{consumer_uuid}",
    ),
    "placement:reshaper:reshape": ("Move inventories together with their allocations.", "POST /reshaper"),
    "placement:resource_classes:create": ("Create a resource class.", "POST /resource_classes"),
    "placement:resource_classes:delete": ("Delete a resource class.", "DELETE /resource_classes/{name}"),
    "placement:resource_classes:list": ("List the resource classes.", "GET /resource_classes"),
    "placement:resource_classes:show": ("Show a resource class.", "GET /resource_classes/{name}"),
    "placement:resource_classes:update": (
        "Create or rename a resource class.",
        "PUT /resource_classes/{name}",
    ),
    "placement:resource_providers:aggregates:list": (
        "List a provider's aggregates.",
        "GET /resource_providers/{uuid}/aggregates",
    ),
    "placement:resource_providers:aggregates:update": (
        "Replace a provider's aggregates.",
        "PUT /resource_providers/{uuid}/aggregates",
    ),
    "placement:resource_providers:allocations:list": (
        "List what consumers hold of a provider.",
        "GET /resource_providers/{uuid}/allocations",
    ),
    "placement:resource_providers:create": ("Create a provider.", "POST /resource_providers"),
    "placement:resource_providers:delete": ("Delete a provider.", "DELETE /resource_providers/{uuid}"),
    "placement:resource_providers:inventories:create": (
        "Add one inventory to a provider.",
        "POST /resource_providers/{uuid}/inventories",
    ),
    "placement:resource_providers:inventories:delete": (
        "Delete one or all inventories of a provider.",
        "DELETE /resource_providers/{uuid}/inventories",
        "DELETE /resource_providers/{uuid}/inventories/{resource_class}",
    ),
    "placement:resource_providers:inventories:list": (
        "List a provider's inventories.",
        "GET /resource_providers/{uuid}/inventories",
    ),
    "placement:resource_providers:inventories:show": (
        "Show one inventory of a provider.",
        "GET /resource_providers/{uuid}/inventories/{resource_class}",
    ),
    "placement:resource_providers:inventories:update": (
        "Replace one or all inventories of a provider.",
        "PUT /resource_providers/{uuid}/inventories",
        "PUT /resource_providers/{uuid}/inventories/{resource_class}",
    ),
    "placement:resource_providers:list": ("List the providers.", "GET /resource_providers"),
    "placement:resource_providers:show": ("Show a provider.", "GET /resource_providers/{uuid}"),
    "placement:resource_providers:traits:delete": (
        "Take all traits from a provider.",
        "DELETE /resource_providers/{uuid}/traits",
    ),
    "placement:resource_providers:traits:list": (
        "List a provider's traits.",
        "GET /resource_providers/{uuid}/traits",
    ),
    "placement:resource_providers:traits:update": (
        "Replace a provider's traits.",
        "PUT /resource_providers/{uuid}/traits",
    ),
    "placement:resource_providers:update": (
        "Change a provider's name or parent.",
        "PUT /resource_providers/{uuid}",
    ),
    "placement:resource_providers:usages": (
        "Show how much of a provider is used.",
        "GET /resource_providers/{uuid}/usages",
    ),
    "placement:traits:delete": ("Delete a trait.", "DELETE /traits/{name}"),
    "placement:traits:list": ("List the traits.", "GET /traits"),
    "placement:traits:show": ("Ask whether a trait exists.", "GET /traits/{name}"),
    "placement:traits:update": ("Create a trait.", "PUT /traits/{name}"),
    "placement:usages": ("Show how much a project uses.", "GET /usages"),
}

SECURE: Final[Mapping[str, str]] = {
    **dict.fromkeys(DOCUMENTED, "rule:admin_or_service_api"),
    "admin_api": "role:admin",
    "service_api": "role:service",
    "admin_or_service_api": "role:admin or role:service",
    "project_reader_api": "role:reader and project_id:%(project_id)s",
    "admin_or_project_reader_or_service_api": "role:admin or rule:project_reader_api or role:service",
    # A project's own readers may see what it uses.
    "placement:usages": "rule:admin_or_project_reader_or_service_api",
    # A reshape moves what consumers hold. Only the service that owns the inventories can judge that.
    "placement:reshaper:reshape": "rule:service_api",
}
LEGACY: Final[Mapping[str, str]] = {**SECURE, "service_api": "role:service or rule:admin_api"}
OPEN: Final[Mapping[str, str]] = {
    name: "@" if name.startswith(ENDPOINT) else rule for name, rule in SECURE.items()
}

# A policy: all rules are read and checked at the start, and each request is judged by them.


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
        self._enforcer = _enforcer_of(rules)
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


def _enforcer_of(rules: Mapping[str, str]) -> "Enforcer":
    """An enforcer that judges by these rules. Raises BadPolicyError as Policy does.

    It has a configuration of its own and never reads a file again: a file that an operator edits while the server runs
    would take effect unchecked.
    """
    from oslo_config.cfg import ConfigOpts
    from oslo_policy import policy as oslo

    # It logs a traceback for what is refused here in one line.
    logging.getLogger("oslo_policy").setLevel(logging.CRITICAL)
    enforcer = oslo.Enforcer(ConfigOpts(), rules=oslo.Rules.from_dict(dict(rules)), use_conf=False)
    for name, text in rules.items():
        # What oslo.policy cannot read becomes `!`, in part or whole: such a rule would deny its requests without a word.
        if str(enforcer.rules[name]).count("!") > text.count("!"):
            raise BadPolicyError(
                f"{name} is {text!r}: oslo.policy cannot read it. Write kind:value, @ or !, joined by and, or, not, (...)"
            )
    try:
        enforcer.check_rules(raise_on_violation=True)
    except oslo.InvalidDefinitionError as wrong:
        said = str(wrong).removesuffix("Check logs for more details.")
        raise BadPolicyError(f"{said}Each refers to a rule that does not exist, or to itself") from None
    return enforcer


# The entry points of oslo's `oslopolicy-*` tools. The service calls neither: get_enforcer reads oslo's global configuration,
# which only those tools fill.


def list_rules() -> list["RuleDefault"]:
    """The rules of OpenStack's Placement with their texts (entry point `oslo.policy.policies`)."""
    from oslo_policy import policy as oslo

    rules: list[RuleDefault] = []
    for name, (description, *requests) in DOCUMENTED.items():
        if requests:
            operations = [
                oslo.Operation(method=method, path=path)
                for method, path in (request.split(" ", 1) for request in requests)
            ]
            texts = name, LEGACY[name], description
            rules.append(oslo.DocumentedRuleDefault(*texts, operations, scope_types=["project"]))
        else:
            rules.append(oslo.RuleDefault(name, LEGACY[name], description))
    return rules


def get_enforcer() -> "Enforcer":
    """A policy enforcer with these rules (entry point `oslo.policy.enforcer`)."""
    from oslo_config import cfg
    from oslo_policy import policy as oslo

    enforcer = oslo.Enforcer(cfg.CONF)
    enforcer.register_defaults(list_rules())
    return enforcer
