"""Unmodified clients against a placement server: `python -m tests.conformance.clients [--against ours|openstacks]`.

The clients are the `openstack` command with osc-placement, and Nova's SchedulerReportClient, in an environment of their
own that is created on first use. Our server is tested with each kind of authentication that needs no Keystone, each
time with empty books. OpenStack's own server is tested with its only kind; this shows that the scripts are right. The
exit code is 1 if any step failed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import bcrypt

from tests.conformance.clients_openstack import Openstack, a_wrong_password_is_refused, openstack_works
from tests.environments import environment
from tests.placement_servers import openstacks_server, our_server

CLIENTS = ("python-openstackclient>=10", "osc-placement>=4.9", "nova>=34")
USER, PASSWORD = "somebody", "a password: with a colon"
# The smallest number of rounds that bcrypt allows: these passwords protect nothing.
BCRYPT_ROUNDS = 4
PROJECT_DIRECTORY = Path(__file__).parents[2]
# The credentials of each client by kind of authentication, under keystoneauth's own names.
CREDENTIALS: Mapping[str, Mapping[str, str]] = {
    "none": {"auth-type": "none"},
    "basic": {"auth-type": "http_basic", "username": USER, "password": PASSWORD},
    "noauth2": {"auth-type": "admin_token", "token": "admin"},
}


@contextmanager
def server_with_empty_books(against: str, auth: str) -> Iterator[str]:
    """Returns its address."""
    with tempfile.TemporaryDirectory(prefix="moor-") as directory:
        books = f"sqlite+aiosqlite:///{directory}/placement.db"
        if against == "openstacks":
            with openstacks_server(books) as server:
                yield server.url
            return
        users = Path(directory) / "users"
        users.write_bytes(
            USER.encode() + b":" + bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(BCRYPT_ROUNDS)) + b"\n"
        )
        with our_server(
            books, auth=auth, options=("--users", str(users)) if auth == "basic" else ()
        ) as server:
            yield server.url


def openstack_works_on(url: str, auth: str, programs: Path, title: str) -> bool:
    well = openstack_works(_openstack(url, CREDENTIALS[auth], programs), title)
    if auth == "basic":
        wrong = {**CREDENTIALS[auth], "password": f"not {PASSWORD}"}
        well &= a_wrong_password_is_refused(_openstack(url, wrong, programs), f"{title}, wrong password")
    return well


def _openstack(url: str, credentials: Mapping[str, str], programs: Path) -> Openstack:
    options = [part for name, value in credentials.items() for part in (f"--os-{name}", value)]
    return Openstack(programs / "openstack", url, options)


def nova_works_on(url: str, auth: str, programs: Path, title: str) -> bool:
    settings = {**CREDENTIALS[auth], "endpoint-override": url}
    if auth == "noauth2":
        settings["endpoint"] = url
    lines = (f"{name.replace('-', '_')} = {value}" for name, value in settings.items())
    with tempfile.NamedTemporaryFile("w", prefix="moor-", suffix=".conf") as file:
        file.write("\n".join(("[placement]", *lines, "")))
        file.flush()
        done = subprocess.run(
            # On each start it warns about a library that it uses.
            (
                str(programs / "python"),
                "-W",
                "ignore",
                "-m",
                "tests.conformance.clients_nova",
                file.name,
                title,
            ),
            cwd=PROJECT_DIRECTORY,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            check=False,
        )
    return done.returncode == 0


def all_work(against: str, only: Sequence[str], auths: Sequence[str]) -> bool:
    programs = environment("clients", CLIENTS)
    well = True
    for auth in auths:
        for client in only:
            title = f"{client}, {against}, auth {auth}"
            with server_with_empty_books(against, auth) as url:
                if client == "nova":
                    well &= nova_works_on(url, auth, programs, title)
                else:
                    well &= openstack_works_on(url, auth, programs, title)
    return well


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.clients", description="Unmodified clients."
    )
    parser.add_argument("--against", choices=("ours", "openstacks"), default="ours", help="which server")
    parser.add_argument("--only", choices=("openstack", "nova"), help="run only this client")
    parser.add_argument("--auth", choices=("none", "basic"), help="run only this kind of authentication")
    options = parser.parse_args(arguments)
    if options.against == "openstacks" and options.auth:
        parser.error("OpenStack's own server has neither kind of authentication")
    auths = ("none", "basic") if options.auth is None else (options.auth,)
    if options.against == "openstacks":
        auths = ("noauth2",)
    clients = ("openstack", "nova") if options.only is None else (options.only,)
    return 0 if all_work(options.against, clients, auths) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
