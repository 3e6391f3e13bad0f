"""The flags of the dashboard. All are read and checked before it starts."""

from typing import Annotated

import typer

from kit.health import read_listen
from moor.dashboard.service import DashboardOptions
from moor.dashboard.sessions import SESSION_S
from moor.options import option_of, wrong_value
from moor.placement.placement_api_options import (
    AccessFlags,
    Auth,
    authentication_of,
    check_guarded,
    proxies_of,
    tls_of,
)
from moor.settings import GENERAL

DASHBOARD_LISTEN = "127.0.0.1:8781"
OFF = "off"
DashboardAt = Annotated[str, option_of(GENERAL, "dashboard_listen", metavar="HOST:PORT")]


class DashboardFlags(AccessFlags, frozen=True, kw_only=True):
    dashboard_listen: DashboardAt = DASHBOARD_LISTEN
    dashboard_names: Annotated[str, option_of(GENERAL, "dashboard_names", metavar="NAME,NAME")] = ""
    dashboard_session_s: Annotated[float, option_of(GENERAL, "dashboard_session_s", metavar="S")] = SESSION_S


def dashboard_options(flags: DashboardFlags) -> DashboardOptions:
    """Check the flags. Raise typer.BadParameter, which names the wrong flag."""
    if flags.auth is Auth.NOAUTH2:
        raise typer.BadParameter(
            "auth is noauth2, which the dashboard does not have: use none, basic or keystone"
        )
    with wrong_value():
        listen = read_listen(flags.dashboard_listen)
        check_guarded(flags, listen, "moor run dashboard")
        return DashboardOptions(
            listen=listen,
            auth=authentication_of(flags),
            names=tuple(name for part in flags.dashboard_names.split(",") if (name := part.strip())),
            tls=tls_of(flags),
            session_s=flags.dashboard_session_s,
            proxies=proxies_of(flags),
        )
