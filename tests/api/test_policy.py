"""May this caller make this request?"""

import json
import logging
import os
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path

import pytest

from placement_worker.api.policy import ENDPOINT, LEGACY, BadPolicyError, Policy, policy_named
from placement_worker.api.values import ApiError, Caller

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


@pytest.mark.parametrize("named", [("p-2", "p-1"), ("p-1", "p-2")])
def test_a_caller_must_be_allowed_each_project_that_a_query_names(named: tuple[str, str]) -> None:
    with pytest.raises(ApiError):
        policy_named("secure").check(USAGES, READER, [("project_id", each) for each in named])


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
        ("project_id:p-%(user_id)s", False),
        ("user_id:%(user_id)s and 'p-1/ann':%(project_id)s/%(user_id)s", True),
        ("role:%(user_id)s", False),
        ("True:True", True),
    ],
)
def test_the_language_of_policies(rule: str, *, expected: bool) -> None:
    policy = Policy({"r": rule, "other": "role:admin"})

    assert is_allowed(policy, "r", ADMIN) is expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("admin", "cannot read it"),
        ("role:admin or admin", "cannot read it"),
        ("not admin", "cannot read it"),
        ("role:admin role:reader", "cannot read it"),
        ("role:admin or", "cannot read it"),
        ("(role:admin", "cannot read it"),
        ("role:admin)", "cannot read it"),
        ("   ", "cannot read it"),
        ("rule:nobody", "does not exist"),
        ("role:admin or rule:r", "or to itself"),
    ],
)
def test_a_rule_that_cannot_be_judged_is_refused_when_it_is_read(
    text: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(BadPolicyError, match=why) as refused:
        Policy({"r": text})

    assert str(refused.value).startswith((f"r is {text!r}: ", "Policies ['r'] are not well defined. "))
    assert not caplog.records, "the refusal says it; oslo.policy's traceback would say it again"


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
        (f"'{LIST}': 'rule:nobody'", f"'{LIST}'.*does not exist"),
        (f"'{LIST}': 'role:admin or'", "role:admin or"),
        (f"a: rule:b\nb: rule:a\n'{LIST}': rule:a", "or to itself"),
        ("- a\n- b", "list"),
        ("[]", "list"),
        ("a: 1", "must be strings"),
        ("a: [[role:admin]]", "must be strings"),
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


def test_a_file_that_changes_while_the_server_runs_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(f"'{LIST}': role:reader\n")
    policy = policy_named(str(file))

    file.write_text(f"'{LIST}': '!'\n")

    assert is_allowed(policy, LIST, READER)


def run_tool(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name(f"oslopolicy-{name}")
    return subprocess.run(
        [str(tool), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"'{LIST}': 'rule:admin_or_service_api or role:auditor'", ""),
        ("placement:nothing:list: '@'", "Unknown rule found in policy file: placement:nothing:list\n"),
        (f"'{LIST}': 'role:admin or'", "Failed to parse rule: role:admin or\n"),
    ],
)
def test_the_validator_of_oslo_policy_judges_a_file_by_our_rules(
    tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)

    done = run_tool("validator", "--namespace", "moorage", OS_OSLO_POLICY__POLICY_FILE=str(file))

    assert (done.returncode, done.stdout) == (int(bool(says)), says), done.stderr


def test_the_generator_and_the_checker_of_oslo_policy_agree_with_the_server(tmp_path: Path) -> None:
    file, whole, token = tmp_path / "policy.yaml", tmp_path / "whole.yaml", tmp_path / "token.json"
    file.write_text(f"'{LIST}': 'rule:project_reader_api'\n")
    token.write_text(
        json.dumps(
            {"token": {"user": {"id": "ron"}, "project": {"id": "p-1"}, "roles": [{"name": "reader"}]}}
        )
    )

    run_tool(
        "policy-generator",
        "--namespace",
        "moorage",
        "--output-file",
        str(whole),
        OS_OSLO_POLICY__POLICY_FILE=str(file),
    )
    done = run_tool("checker", "--policy", str(whole), "--access", str(token))

    said = {rule: verdict for verdict, rule in (line.split(": ", 1) for line in done.stdout.splitlines())}
    policy = policy_named(str(file))
    expected = {
        rule: "passed" if is_allowed(policy, rule, READER) else "failed"
        for rule in LEGACY
        if rule.startswith(ENDPOINT)
    }
    assert said == expected, done.stderr
    assert said[LIST] == "passed"


@pytest.mark.parametrize(
    "module", ["moor.commands", "moor.placement.placement_api_options", "placement_worker.__main__"]
)
def test_only_a_process_that_serves_the_api_loads_oslo_policy(module: str) -> None:
    script = f"import sys, {module}; print(sorted(name for name in sys.modules if name.startswith('oslo')))"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
