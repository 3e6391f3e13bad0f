"""The flags and MOOR_* variables of placement's HTTP API. All are read and checked before the server starts."""

from pathlib import Path
from typing import Annotated, Literal

import click
import httpx
from msgspec import Struct

from kit.health import Listen, read_listen
from kit.keystone import OPENSTACK, TIMEOUT_S, check_account
from kit.login import tls_of
from kit.tls import BadCertificate, ServerTls, server_tls
from moor.flags import option
from moor.options import option_of, tuned, wrong_value
from moor.settings import GENERAL
from placement_worker.api.auth import (
    Authentication,
    BasicAuthentication,
    BelievedToken,
    KeystoneAuthentication,
    NoAuthentication,
    users_in,
)
from placement_worker.api.policy import policy_named
from placement_worker.api.service import ServiceOptions
from placement_worker.settings import PlacementSettings

DEFAULT_LISTEN = "127.0.0.1:8780"


Auth = Literal["none", "basic", "keystone", "noauth2"]
# With these, any client may connect without a credential.
UNGUARDED = ("none", "noauth2")

ListenAt = Annotated[str, option_of(GENERAL, "listen", "--listen", metavar="HOST:PORT")]


class AccessFlags(Struct, frozen=True, kw_only=True):
    """Who may use an HTTP service, and how it proves itself."""

    auth: Annotated[Auth, option_of(GENERAL, "auth")] = "none"
    allow_anyone: Annotated[
        bool,
        option("--allow-anyone", help="With none or noauth2: also accept clients from other machines."),
    ] = False
    users: Annotated[Path | None, option_of(GENERAL, "users", metavar="FILE")] = None
    tls_cert: Annotated[Path | None, option_of(GENERAL, "tls_cert", metavar="FILE")] = None
    tls_key: Annotated[Path | None, option_of(GENERAL, "tls_key", metavar="FILE")] = None
    tls_clients_ca: Annotated[Path | None, option_of(GENERAL, "tls_clients_ca", metavar="FILE")] = None
    trusted_proxy: Annotated[
        list[str] | None, option_of(GENERAL, "trusted_proxies", metavar="ADDRESS|NETWORK")
    ] = None


class ApiFlags(AccessFlags, frozen=True, kw_only=True):
    listen: ListenAt = DEFAULT_LISTEN
    share_port: Annotated[
        bool,
        option(
            "--share-port",
            help="Let other processes listen at the same address: start one process per core.",
        ),
    ] = False
    policy: Annotated[str, option_of(GENERAL, "policy", metavar="legacy|secure|open|FILE")] = "legacy"
    cors_origin: Annotated[list[str] | None, option_of(GENERAL, "cors_origins", metavar="ORIGIN")] = None
    prefix: Annotated[str, option_of(GENERAL, "prefix", metavar="/PATH")] = ""


def serving_of(flags: ApiFlags, settings: PlacementSettings | None = None) -> ServiceOptions:
    """Check the flags of the placement API, and return its options: the flags, and the settings of placement.

    Raise click.BadParameter, which names the wrong flag.
    """
    with wrong_value():
        listen = read_listen(flags.listen, is_shared=flags.share_port)
        check_guarded(flags, listen)
        return ServiceOptions(
            listen=listen,
            auth=authentication_of(flags),
            policy=policy_named(flags.policy),
            settings=settings or PlacementSettings(),
            tls=served_tls(flags),
            proxies=proxies_of(flags),
            prefix=flags.prefix,
            cors_origins=tuple(flags.cors_origin or ()),
        )


def proxies_of(flags: AccessFlags) -> tuple[str, ...]:
    """The proxies on other machines whose word on their clients counts. The variable has commas."""
    proxies: tuple[str, ...] = GENERAL.stated(
        "trusted_proxies", ",".join(flags.trusted_proxy or ()), "--trusted-proxy"
    ).value
    return proxies


def check_guarded(flags: AccessFlags, listen: Listen) -> None:
    """Refuse to serve other machines without asking who they are, unless the operator says so."""
    if flags.auth in UNGUARDED and not listen.is_loopback and not flags.allow_anyone:
        raise click.BadParameter(
            f"auth is {flags.auth}, which lets anyone in, and {listen} can be reached from other machines: listen "
            "on 127.0.0.1, or give --auth basic or keystone, or --allow-anyone"
        )


def authentication_of(flags: AccessFlags) -> Authentication:
    match flags.auth:
        case "none":
            return NoAuthentication()
        case "noauth2":
            return BelievedToken()
        case "basic":
            if flags.users is None:
                raise click.BadParameter(
                    "auth is basic, which needs --users or MOOR_USERS: a file written by `htpasswd -B`"
                )
            return BasicAuthentication(users_in(flags.users))
        case "keystone":
            return _keystone()


def _keystone() -> Authentication:
    account = tuned(OPENSTACK)
    if not account.keystone_url:
        raise click.BadParameter(
            f"auth is keystone, which needs {OPENSTACK.variable('keystone_url')}, and the account with which placement asks Keystone "
            f"about tokens: {OPENSTACK.variable('user')} and {OPENSTACK.variable('password')}"
        )
    check_account(account)
    return KeystoneAuthentication(account, httpx.AsyncClient(timeout=TIMEOUT_S, verify=tls_of(account)))


def served_tls(flags: AccessFlags) -> ServerTls | None:
    match flags.tls_cert, flags.tls_key:
        case None, None if flags.tls_clients_ca:
            raise click.BadParameter(
                f"tls-clients-ca is {flags.tls_clients_ca}, and without --tls-cert and --tls-key no TLS is served"
            )
        case None, None:
            return None
        case Path() as chain, Path() as key:
            return _certificate(chain, key, flags.tls_clients_ca)
    raise click.BadParameter("only one of --tls-cert and --tls-key is given: TLS needs both")


def _certificate(chain: Path, key: Path, clients_ca: Path | None) -> ServerTls:
    try:
        return server_tls(str(chain), str(key), str(clients_ca or ""))
    except BadCertificate as wrong:
        what = f"the certificate {chain} with key {key}"
        if wrong.argument == "clients_ca_file":
            what = f"the file of the clients' authorities, {wrong.file},"
        raise ValueError(f"{what} cannot be used: {wrong.why}") from None
