"""Policy: may this caller do that?"""

from http import HTTPStatus
from pathlib import Path

import pytest

from placement_worker.api.policy import BadPolicyError, Policy, policy_named
from placement_worker.api.policy.language import BadRuleError, read_rule
from placement_worker.api.problems import ApiError
from placement_worker.api.request import Caller

LIST = "placement:resource_providers:list"
RESHAPE = "placement:reshaper:reshape"
USAGES = "placement:usages"

ADMIN = Caller(user="ann", project="p-1", roles=frozenset(("admin", "member", "reader")))
SERVICE = Caller(user="nova", project="service", roles=frozenset(("service",)))
READER = Caller(user="ron", project="p-1", roles=frozenset(("reader",)))
SYSTEM_ADMIN = Caller(user="sue", roles=frozenset(("admin",)), system_scope="all")


def is_allowed(policy: Policy, rule: str, caller: Caller, **query: str) -> bool:
    try:
        policy.check(rule, caller, tuple(query.items()))
    except ApiError as refused:
        return refused.status is not HTTPStatus.FORBIDDEN
    return True


@pytest.mark.parametrize(
    ("name", "rule", "allowed"),
    [
        ("legacy", LIST, {"ann", "nova"}),
        ("secure", LIST, {"ann", "nova"}),
        ("open", LIST, {"ann", "nova", "ron"}),
        ("legacy", RESHAPE, {"ann", "nova"}),
        ("secure", RESHAPE, {"nova"}),
        ("open", RESHAPE, {"ann", "nova", "ron"}),
        ("legacy", USAGES, {"ann", "nova", "ron"}),
        ("secure", USAGES, {"ann", "nova", "ron"}),
    ],
)
def test_who_may_what_by_the_policies_that_have_names(name: str, rule: str, allowed: set[str]) -> None:
    policy = policy_named(name)

    callers = (ADMIN, SERVICE, READER, SYSTEM_ADMIN)
    assert {caller.user for caller in callers if is_allowed(policy, rule, caller)} == allowed


def test_a_reader_sees_what_their_own_project_uses_and_no_other() -> None:
    policy = policy_named("secure")

    assert is_allowed(policy, USAGES, READER, project_id="p-1")
    assert not is_allowed(policy, USAGES, READER, project_id="p-2")
    assert is_allowed(policy, USAGES, ADMIN, project_id="p-2")


def test_the_first_project_that_a_query_names_is_the_one_that_is_asked_about() -> None:
    query = (("project_id", "p-2"), ("project_id", "p-1"))

    with pytest.raises(ApiError):
        policy_named("secure").check(USAGES, READER, query)


def test_who_has_no_project_is_not_the_reader_of_nothing() -> None:
    policy = Policy({"r": "project_id:%(project_id)s"})

    assert not is_allowed(policy, "r", Caller(user="x"), project_id="")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("", True),
        ("@", True),
        ("!", False),
        ("role:admin", True),
        ("role:ADMIN", True),
        ("role:service", False),
        ("not role:service", True),
        ("not not role:service", False),
        ("role:admin and role:service", False),
        ("role:admin or role:service", True),
        ("role:service AND role:admin OR role:reader", True),
        ("role:service and (role:admin or role:reader)", False),
        ("(role:service or role:admin) and role:reader", True),
        ("((role:admin))", True),
        ("not (role:admin and role:reader)", False),
        ("user_id:ann", True),
        ("user_id:bob", False),
        ("user_id:%(user_id)s and project_id:%(project_id)s", True),
        ("'p-1':%(project_id)s", True),
        ('"p-2":%(project_id)s', False),
        ("('p-1':%(project_id)s)", True),
        ("rule:other", True),
        ("not rule:other", False),
    ],
)
def test_the_language_of_policies(rule: str, *, expected: bool) -> None:
    policy = Policy({"r": rule, "other": "role:admin"})

    assert is_allowed(policy, "r", ADMIN) is expected


@pytest.mark.parametrize(
    "text",
    [
        "role:",
        "admin",
        "role:admin role:reader",
        "role:admin or",
        "and role:admin",
        "(role:admin",
        "role:admin)",
        "not",
        "http://example.com/check",
        "flavor:%(flavor)s",
        "project_id:%(flavor)s",
        "project_id:x%(project_id)s",
        "role:%(project_id)s",
    ],
)
def test_what_is_no_rule_is_refused_when_it_is_read(text: str) -> None:
    with pytest.raises(BadRuleError):
        read_rule(text)


def test_a_file_replaces_legacy_rules_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(f"# only us\nservice_api: role:service\n'{LIST}': 'role:reader or rule:admin_api'\n")

    policy = policy_named(str(file))

    assert is_allowed(policy, LIST, READER)
    assert not is_allowed(policy, LIST, SERVICE)
    assert not is_allowed(policy, RESHAPE, ADMIN)
    assert is_allowed(policy, "placement:traits:list", SERVICE)


def test_a_file_may_be_json_or_empty(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text(f'{{"{LIST}": "!"}}')
    (tmp_path / "empty.yaml").write_text("# nothing\n")

    assert not is_allowed(policy_named(str(tmp_path / "policy.json")), LIST, ADMIN)
    assert is_allowed(policy_named(str(tmp_path / "empty.yaml")), LIST, ADMIN)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("placement:nothing:list: '@'", "placement:nothing:list"),
        (f"'{LIST}': 'rule:nobody'", "nobody"),
        (f"'{LIST}': 'role:admin or'", "role:admin or"),
        (f"a: rule:b\nb: rule:a\n'{LIST}': rule:a", "circle"),
        ("- a\n- b", "list"),
        ("a: 1", "must be strings"),
        ("a: [", "cannot be read|that can be read"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_what_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)

    with pytest.raises(BadPolicyError, match=why):
        policy_named(str(file))


def test_a_policy_that_is_neither_a_name_nor_a_file_is_refused() -> None:
    with pytest.raises(BadPolicyError, match=r"legcay.*legacy, secure, open"):
        policy_named("legcay")
