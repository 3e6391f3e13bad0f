"""May this caller make this request?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from placement_worker.api.auth import BelievedToken
from placement_worker.api.policy import (
    DOCUMENTED,
    ENDPOINT,
    LEGACY,
    OPEN,
    SECURE,
    BadPolicyError,
    policy_named,
)
from tests.api.test_auth import OTHERS, OWN, PROVIDERS, guarded, status
from tools.pages.placement_openapi import every_route

LIST = "placement:resource_providers:list"
ADMIN, SERVICE, READER, SYSTEM = (
    {"x-auth-token": "ann:shop", "x-roles": "admin,member,reader"},
    {"x-auth-token": "nova:service", "x-roles": "service"},
    {"x-auth-token": "ron:shop", "x-roles": "reader"},
    {"x-auth-token": "sue", "x-roles": "admin", "openstack-system-scope": "all"},
)


async def allowed(policy: str, path: str = PROVIDERS) -> list[bool]:
    """Whether an administrator, a service, a reader and one of the system may read this."""
    async with guarded(BelievedToken(), policy) as server:
        return [await status(server, each, path) == 200 for each in (ADMIN, SERVICE, READER, SYSTEM)]


@pytest.mark.parametrize(
    ("policy", "path", "may"),
    [
        ("legacy", PROVIDERS, [True, True, False, False]),
        ("secure", PROVIDERS, [True, True, False, False]),
        ("open", PROVIDERS, [True, True, True, False]),
        ("legacy", OWN, [True, True, True, False]),
        ("secure", OWN, [True, True, True, False]),
        ("secure", OTHERS, [True, True, False, False]),
    ],
)
async def test_who_may_what_by_the_policies_that_have_names(policy: str, path: str, may: list[bool]) -> None:
    assert await allowed(policy, path) == may


async def test_a_file_replaces_legacy_rules_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(f"# only us\nservice_api: role:service\n'{LIST}': 'role:reader or rule:admin_api'\n")

    assert await allowed(str(file)) == [True, False, True, False]
    assert await allowed(str(file), "/traits") == [True, True, False, False]


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
        (None, "legacy, secure, open"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_what_is_wrong(
    tmp_path: Path, text: str | None, why: str
) -> None:
    file = tmp_path / "policy.yaml"
    if text is not None:
        file.write_text(text)

    with pytest.raises(BadPolicyError, match=why):
        policy_named(str(file))


def test_each_endpoint_asks_a_rule_that_there_is_and_each_rule_is_documented_with_its_requests() -> None:
    asked: dict[str, set[str]] = {}
    for route in every_route():
        if route.rule:
            asked.setdefault(route.rule, set()).add(f"{route.method} {route.path}")

    for policy in (LEGACY, SECURE, OPEN):
        assert asked.keys() == {rule for rule in policy if rule.startswith(ENDPOINT)}
    documented = {rule: set(requests) for rule, (_, *requests) in DOCUMENTED.items()}
    assert {rule: documented[rule] for rule in asked} == asked


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


@pytest.mark.parametrize(
    "module", ["moor.commands", "moor.placement.placement_api_options", "placement_worker.__main__"]
)
def test_only_a_process_that_serves_the_api_loads_oslo_policy(module: str) -> None:
    script = f"import sys, {module}; print(sorted(name for name in sys.modules if name.startswith('oslo')))"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
