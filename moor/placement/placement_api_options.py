"""The flags and MOOR_* variables of placement's HTTP API. All are read and checked before the server starts."""

import ssl
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct, structs

from bus.keystone import KeystoneAccount
from moor.options import wrong_value
from placement_worker.api.auth import Authentication
from placement_worker.api.auth.basic import BasicAuthentication, users_in
from placement_worker.api.auth.keystone import KeystoneAuthentication, keystone_client
from placement_worker.api.auth.no_authentication import NoAuthentication
from placement_worker.api.auth.noauth2 import BelievedToken
from placement_worker.api.http.server import read_certificate, read_listen
from placement_worker.api.policy import policy_named
from placement_worker.api.settings import ApiSettings
from placement_worker.http_service import ServiceOptions

DEFAULT_LISTEN = "127.0.0.1:8780"


class Auth(StrEnum):
    NONE = "none"
    BASIC = "basic"
    KEYSTONE = "keystone"
    NOAUTH2 = "noauth2"


# With these, any client may connect without a credential.
UNGUARDED = (Auth.NONE, Auth.NOAUTH2)

ListenAt = Annotated[
    str,
    typer.Option(
        "--listen", envvar="MOOR_LISTEN", metavar="HOST:PORT", help="The address of placement's HTTP API."
    ),
]


class ApiFlags(Struct, frozen=True, kw_only=True):
    listen: ListenAt = DEFAULT_LISTEN
    share_port: Annotated[
        bool,
        typer.Option(
            "--share-port",
            envvar="MOOR_SHARE_PORT",
            help="Let other processes listen at the same address: start one process per core.",
        ),
    ] = False
    auth: Annotated[
        Auth,
        typer.Option(
            envvar="MOOR_AUTH",
            help="How clients authenticate: none (anyone, from this machine only), basic (users of a file), keystone (Keystone "
            "tokens), or noauth2 (anyone, under any name; for tests).",
        ),
    ] = Auth.NONE
    allow_anyone: Annotated[
        bool,
        typer.Option(
            "--allow-anyone",
            envvar="MOOR_ALLOW_ANYONE",
            help="With none or noauth2: also accept clients from other machines.",
        ),
    ] = False
    users: Annotated[
        Path | None,
        typer.Option(
            envvar="MOOR_USERS",
            metavar="FILE",
            help="For basic: a file written by `htpasswd -B`. An optional third field is the project whose usages the user may read.",
        ),
    ] = None
    policy: Annotated[
        str,
        typer.Option(
            envvar="MOOR_POLICY",
            metavar="legacy|secure|open|FILE",
            help="The policy that says which role may do what.",
        ),
    ] = "legacy"
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            envvar="MOOR_CORS_ORIGINS",
            metavar="ORIGIN",
            help="An origin whose pages a browser may let read the answers; may be repeated, * means any.",
        ),
    ] = None
    prefix: Annotated[
        str,
        typer.Option(envvar="MOOR_PREFIX", metavar="/PATH", help="A path before all paths, for proxies."),
    ] = ""
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            envvar="MOOR_TLS_CERT",
            metavar="FILE",
            help="Serve TLS with this certificate chain (PEM).",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option(envvar="MOOR_TLS_KEY", metavar="FILE", help="The private key of --tls-cert (PEM)."),
    ] = None
    keystone_url: Annotated[
        str,
        typer.Option(
            envvar="MOOR_KEYSTONE_URL",
            metavar="URL",
            help="For keystone: Keystone's URL, without /v3.",
        ),
    ] = ""
    keystone_user: Annotated[
        str,
        typer.Option(
            envvar="MOOR_KEYSTONE_USER",
            metavar="NAME",
            help="The user with which placement asks Keystone about tokens.",
        ),
    ] = "placement"
    # Every user of the machine can read a command line. So help hides this flag: the password belongs in the variable.
    keystone_password: Annotated[str, typer.Option(envvar="MOOR_KEYSTONE_PASSWORD", hidden=True)] = ""
    keystone_project: Annotated[
        str,
        typer.Option(envvar="MOOR_KEYSTONE_PROJECT", metavar="NAME", help="The project of that user."),
    ] = "service"
    keystone_domain: Annotated[
        str,
        typer.Option(
            envvar="MOOR_KEYSTONE_DOMAIN",
            metavar="NAME",
            help="The domain of that user and project.",
        ),
    ] = "Default"
    keystone_ca: Annotated[
        Path | None,
        typer.Option(
            envvar="MOOR_KEYSTONE_CA",
            metavar="FILE",
            help="The CA certificates (PEM) by which Keystone's certificate is verified, if not the system's.",
        ),
    ] = None


def serving_of(flags: ApiFlags, settings: ApiSettings | None = None) -> ServiceOptions:
    """Check the flags of the placement API, and return its options: the flags, and `settings` that have no flag.

    Raise typer.BadParameter, which names the wrong flag.
    """
    with wrong_value():
        listen = read_listen(flags.listen, is_shared=flags.share_port)
        if flags.auth in UNGUARDED and not listen.is_loopback and not flags.allow_anyone:
            raise typer.BadParameter(
                f"auth is {flags.auth.value}, which lets anyone in, and {listen} can be reached from other machines: listen "
                "on 127.0.0.1; or use `moor run placement-api` with --auth basic or keystone, or with --allow-anyone"
            )
        return ServiceOptions(
            listen=listen,
            auth=_authentication(flags),
            policy=policy_named(flags.policy),
            settings=structs.replace(
                settings or ApiSettings(),
                cors_origins=tuple(flags.cors_origin or ()),
                prefix=flags.prefix,
            ),
            tls=_tls(flags),
        )


def _authentication(flags: ApiFlags) -> Authentication:
    match flags.auth:
        case Auth.NONE:
            return NoAuthentication()
        case Auth.NOAUTH2:
            return BelievedToken()
        case Auth.BASIC:
            if flags.users is None:
                raise typer.BadParameter(
                    "auth is basic, which needs --users or MOOR_USERS: a file written by `htpasswd -B`"
                )
            return BasicAuthentication(users_in(flags.users))
        case Auth.KEYSTONE:
            return _keystone(flags)


def _keystone(flags: ApiFlags) -> Authentication:
    account = KeystoneAccount(
        url=flags.keystone_url,
        user=flags.keystone_user,
        password=flags.keystone_password,
        project=flags.keystone_project,
        user_domain=flags.keystone_domain,
        project_domain=flags.keystone_domain,
    )
    if not (account.url and account.user and account.password):
        raise typer.BadParameter(
            "auth is keystone, which needs --keystone-url (MOOR_KEYSTONE_URL), --keystone-user (MOOR_KEYSTONE_USER) and "
            "MOOR_KEYSTONE_PASSWORD: the account with which placement asks Keystone about tokens"
        )
    try:
        return KeystoneAuthentication(account, keystone_client(flags.keystone_ca))
    except (OSError, ssl.SSLError) as problem:
        raise typer.BadParameter(f"keystone-ca is {flags.keystone_ca}: {problem}") from None


def _tls(flags: ApiFlags) -> ssl.SSLContext | None:
    match flags.tls_cert, flags.tls_key:
        case None, None:
            return None
        case Path() as chain, Path() as key:
            return read_certificate(chain, key)
    raise typer.BadParameter("only one of --tls-cert and --tls-key is given: TLS needs both")
