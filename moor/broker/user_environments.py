"""The variables that the environment file of each user of the brokers has: addresses, cells, and what names nodes' cells."""

from collections.abc import Mapping

from bus.configuration.addresses import ADDRESSES
from bus.configuration.sections import text_of
from bus.topology import ROLES, user_of
from moor.password_files import PasswordFiles
from moor.settings import Settings

# Roles that ask Ironic's API, and need to know which cell a node belongs to.
_WITH_IRONIC = ("ironic", "operator")
_OF_IRONIC = ("ironic_url", "ironic_cell", "ironic_groups", "ironic_shards")


def broker_variables(
    settings: Settings, passwords: Mapping[str, str], files: PasswordFiles | None = None
) -> dict[str, dict[str, str]]:
    """The variables of each user, by its name. An empty value: this user needs no such variable.

    A cell's worker gets only the address of its cell's broker, and an API-level one those of all brokers.
    """
    addresses, login = settings.addresses, (files or PasswordFiles(None, "broker")).login
    found: dict[str, dict[str, str]] = {}
    for role in ROLES:
        for cell in addresses.cells if role.per_cell else ("",):
            user = user_of(role.name, cell)
            own = addresses.cell_bus_urls.get(cell, settings.bus_url)
            found[user] = {"MOOR_BUS_URL": login(own, user, passwords[user])}
            if cell:
                found[user]["MOOR_CELL"] = cell
                continue
            if role.name in ("nova-scheduler", "nova-shadow"):
                # It has no user on the brokers of cells.
                found[user]["MOOR_NOVA_BUS_URL"] = addresses.nova_bus_url
                continue
            found[user] |= {
                "MOOR_CELLS": ",".join(addresses.cells),
                "MOOR_CELL_BUS_URLS": ",".join(
                    f"{name}={login(url, user, passwords[user])}"
                    for name, url in addresses.cell_bus_urls.items()
                ),
            }
            if role.name == "ironic":
                of_ironic = addresses.ironic_bus_url
                found[user]["MOOR_IRONIC_BUS_URL"] = (
                    login(of_ironic, user, passwords[user]) if of_ironic else ""
                )
            if role.name in _WITH_IRONIC:
                found[user] |= {
                    ADDRESSES.variable(field): _text(getattr(addresses, field)) for field in _OF_IRONIC
                }
    return found


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}={each}" for key, each in value.items())
    return text_of(value)
