"""A private Keystone, the real one: on loopback, with SQLite and Fernet tokens, from an environment of its own.

`KeystoneAdmin` is a client of an administrator, by which tests make projects, users, roles and endpoints.
"""

import os
import socket
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import httpx

from laboratory.private_servers import Command, Keeper, wait_until_ready
from tests.environments import environment
from tests.servers.free_places import free_port

# 2025.1. The facts that tests state are those of this version.
REQUIREMENTS = ("keystone==27.0.0",)
ADMIN_PASSWORD = "of the administrator"  # noqa: S105 - of a server inside the tests
ROLES = ("admin", "manager", "member", "reader", "service")
REGION = "RegionOne"

_CONFIGURATION = """
[DEFAULT]
log_file = {directory}/keystone.log
[database]
connection = sqlite:///{directory}/keystone.db
[token]
provider = fernet
[fernet_tokens]
key_repository = {directory}/fernet
[credential]
key_repository = {directory}/credential
[identity]
# The least that is allowed: these passwords protect nothing.
password_hash_rounds = 4
"""


class PrivateKeystone:
    """A Keystone with an administrator. `stop` ends it, and `start` starts it again with the same data at the same port.

    With a `certificate`, a PEM file that has its key too, it serves TLS from the next start on.
    """

    def __init__(self) -> None:
        self._programs = environment("keystone", REQUIREMENTS)
        self.certificate: Path | None = None
        self._keeper = Keeper()
        self._port = free_port()
        self._server = 0

    def __enter__(self) -> Self:
        (self._directory / "keystone.conf").write_text(_CONFIGURATION.format(directory=self._directory))
        for name in ("fernet", "credential"):
            (self._directory / name).mkdir(mode=0o700)
        me = ("--keystone-user", str(os.geteuid()), "--keystone-group", str(os.getegid()))
        for arguments in (
            ("db_sync",),
            ("fernet_setup", *me),
            ("credential_setup", *me),
            (
                *("bootstrap", "--bootstrap-password", ADMIN_PASSWORD, "--bootstrap-region-id", REGION),
                *("--bootstrap-public-url", self.url, "--bootstrap-internal-url", self.url),
            ),
        ):
            self._manage(*arguments)
        with closing(sqlite3.connect(self._directory / "keystone.db")) as database:
            # Otherwise one request that reads keeps others from writing.
            database.execute("PRAGMA journal_mode = WAL")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.close()

    @property
    def url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self._port}"

    @property
    def log(self) -> Path:
        return self._directory / "server.log"

    @property
    def _directory(self) -> Path:
        return self._keeper.directory

    def start(self, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        """`settings` are variables of oslo.config, such as OS_TOKEN__EXPIRATION, which count before the file."""
        certificate = (str(self.certificate),) if self.certificate else ()
        argv = (
            # Without -P, this file would be the module `keystone` there.
            *(str(self._programs / "python"), "-P", str(Path(__file__).with_name("keystone_wsgi.py"))),
            *(str(self._port), *certificate),
        )
        environ = {**self._environment, **settings}
        self._server = self._keeper.start(Command(argv=argv, env=environ, log=str(self.log)))
        wait_until_ready(
            "Keystone",
            ready=self._listens,
            alive=lambda: self._server in self._keeper.processes(),
            logs=(self.log, self._directory / "keystone.log"),
        )

    def stop(self) -> None:
        """End the process; its data stays."""
        self._keeper.kill()

    @property
    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C.UTF-8",
            "OS_KEYSTONE_CONFIG_FILES": str(self._directory / "keystone.conf"),
        }

    def _manage(self, *arguments: str) -> None:
        done = subprocess.run(
            (
                str(self._programs / "keystone-manage"),
                *("--config-file", str(self._directory / "keystone.conf"), *arguments),
            ),
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"keystone-manage {arguments[0]} failed with exit code {done.returncode}:\n{done.stderr[-3000:]}"
            )

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True


class KeystoneAdmin:
    """Orders to a Keystone as its administrator. Each raises if Keystone refuses it."""

    def __init__(self, keystone: PrivateKeystone) -> None:
        self.url = keystone.url
        self._log = keystone.log
        self._client = httpx.Client(timeout=60)
        self._token = self.token("admin", ADMIN_PASSWORD, project="admin")
        self._roles = {each["name"]: each["id"] for each in self._get("roles")["roles"]}
        for name in ROLES:
            if name not in self._roles:
                self._roles[name] = self._make("roles", "role", name=name)

    def project(self, name: str, domain: str = "default") -> str:
        return self._make("projects", "project", name=name, domain_id=domain)

    def domain(self, name: str) -> str:
        return self._make("domains", "domain", name=name)

    def user(
        self,
        name: str,
        password: str,
        roles: Mapping[str, str] = MappingProxyType({}),
        domain: str = "default",
    ) -> str:
        """`roles` has a role by the id of its project."""
        user = self._make("users", "user", name=name, password=password, domain_id=domain)
        for project, role in roles.items():
            self.grant(user, project, role)
        return user

    def grant(self, user: str, project: str, role: str) -> None:
        self._order("PUT", f"projects/{project}/users/{user}/roles/{self._roles[role]}")

    def withdraw(self, user: str, project: str, role: str) -> None:
        self._order("DELETE", f"projects/{project}/users/{user}/roles/{self._roles[role]}")

    def grant_system(self, user: str, role: str) -> None:
        self._order("PUT", f"system/users/{user}/roles/{self._roles[role]}")

    def change_user(self, user: str, **values: object) -> None:
        self._order("PATCH", f"users/{user}", {"user": values})

    def endpoint(self, service_type: str, url: str, interface: str = "public") -> None:
        service = self._make("services", "service", name=service_type, type=service_type)
        self._make(
            "endpoints", "endpoint", service_id=service, interface=interface, url=url, region_id=REGION
        )

    def application_credential(self, user: str, token: str, secret: str, role: str) -> str:
        """Of the user whose token this is. Returns its id."""
        wanted = {"name": f"of {user}", "secret": secret, "roles": [{"name": role}]}
        made = self._order(
            "POST", f"users/{user}/application_credentials", {"application_credential": wanted}, token
        )
        return str(made["application_credential"]["id"])

    def revoke(self, token: str) -> None:
        self._answer("DELETE", "auth/tokens", headers={"x-auth-token": token, "x-subject-token": token})

    def token(
        self,
        user: str,
        password: str,
        *,
        project: str = "",
        domain: str = "Default",
        system: bool = False,
    ) -> str:
        """A token for a project, for the whole system, or for nothing."""
        named = {"name": user, "password": password, "domain": {"name": domain}}
        auth: dict[str, Any] = {"identity": {"methods": ["password"], "password": {"user": named}}}
        if project:
            auth["scope"] = {"project": {"name": project, "domain": {"name": domain}}}
        elif system:
            auth["scope"] = {"system": {"all": True}}
        answer = self._answer("POST", "auth/tokens", {"auth": auth})
        return answer.headers["x-subject-token"]

    def _get(self, path: str) -> Any:
        return self._answer("GET", path, headers={"x-auth-token": self._token}).json()

    def _make(self, path: str, kind: str, **values: object) -> str:
        return str(self._order("POST", path, {kind: values})[kind]["id"])

    def _order(self, method: str, path: str, body: object = None, token: str = "") -> Any:
        answer = self._answer(method, path, body, {"x-auth-token": token or self._token})
        return answer.json() if answer.content else {}

    def _answer(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> httpx.Response:
        answer = self._client.request(method, f"{self.url}/v3/{path}", json=body, headers=dict(headers))
        if answer.status_code >= HTTPStatus.BAD_REQUEST:
            told = self._log.read_text()[-3000:] if answer.is_server_error else answer.text
            raise RuntimeError(f"Keystone answers {answer.status_code} to {method} {path}: {told}")
        return answer

    def close(self) -> None:
        self._client.close()
