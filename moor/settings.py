"""Reads the settings of a command from its flags, `MOOR_*` variables, a TOML file and the defaults, in this order.

A file may contain:

    bus_url = "amqp://moorage:...@localhost/"
    db_url = "postgresql+asyncpg://moorage:...@localhost/moorage"
    placement_db_url = "postgresql+asyncpg://moorage:...@localhost/placement"      # default: db_url
    ironic_db_url = "postgresql+asyncpg://moorage:...@localhost/ironic_sync"       # default: db_url
    cells = ["harbour", "island"]
    data = "/var/lib/moorage"               # the directory of `moor up`

    listen = "127.0.0.1:8780"               # any flag that has a variable, named like the variable

    [scheduler]                             # the settings of a worker; moor/tuning.py has all sections
    instances_per_host_max = 60

    [cell_bus_urls]
    island = "amqp://moorage:...@island/"

The file is the one named by `--config FILE` or `MOOR_CONFIG`, or else ./moorage.toml, or else
$XDG_CONFIG_HOME/moorage/config.toml. Only the first file that exists is read.
"""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msgspec import Struct

from bus.configuration.addresses import (
    READERS,
    Addresses,
    BadSetting,
    Stated,
    Value,
    addresses_of,
    from_text,
    stated_in,
)
from bus.configuration.tuning import Tuned, tuned_by
from moor.tuning import SECTIONS, Tuning

FLAGS = {
    "bus_url": "--bus",
    "db_url": "--db",
    "placement_db_url": "--placement-db",
    "ironic_url": "--ironic",
    "ironic_db_url": "--ironic-db",
    "cells": "--cells",
    "data": "--data",
}

# The type of each key in the file, and its name for error messages.
_TEXT = (str, "a text")
_SHAPES: Mapping[str, tuple[type, str]] = {
    "bus_url": _TEXT,
    "db_url": _TEXT,
    "placement_db_url": _TEXT,
    "ironic_db_url": _TEXT,
    "ironic_bus_url": _TEXT,
    "ironic_url": _TEXT,
    "ironic_cell": _TEXT,
    "ironic_groups": (dict, "a table of texts"),
    "ironic_shards": (dict, "a table of texts"),
    "data": _TEXT,
    "cells": (list, "a list of texts"),
    "cell_bus_urls": (dict, "a table of texts"),
    "cell_db_urls": (dict, "a table of texts"),
}
# The keys for flags of single commands. A key is the name of the flag's variable, in lower case, without MOOR_.
OF_COMMANDS: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(
        (
            "cell",
            "compute_faults",
            "ironic_name",
            "broker_ctl",
            "project",
            "health_listen",
            "log_format",
            "flavors",
            "ironic_sim_groups",
            "ironic_sim_script",
        ),
        _TEXT,
    ),
    **dict.fromkeys(
        ("listen", "ironic_sim_listen", "prefix", "auth", "users", "policy", "tls_cert", "tls_key"), _TEXT
    ),
    **dict.fromkeys(("keystone_url", "keystone_user", "keystone_password", "keystone_project"), _TEXT),
    **dict.fromkeys(("keystone_domain", "keystone_ca"), _TEXT),
    **dict.fromkeys(("share_port", "allow_anyone"), (bool, "true or false")),
    **dict.fromkeys(("audit_every", "audit_settle"), (float, "a number")),
    "compute_hosts": (int, "a whole number"),
    "ironic_sim_nodes": (int, "a whole number"),
    "cors_origins": (list, "a list of texts"),
}
_KNOWN = {**_SHAPES, **OF_COMMANDS, **dict.fromkeys(SECTIONS, (dict, "a table"))}


class Settings(Struct, frozen=True, kw_only=True):
    """The checked settings of one command."""

    addresses: Addresses
    # The directory with `moor up`'s database, journal and socket.
    data: Path
    # The settings file that was read, if there was one.
    file: Path | None = None

    @property
    def socket(self) -> Path:
        return self.data / "bus.sock"

    @property
    def database_file(self) -> Path:
        return self.data / "moor.db"

    @property
    def flavors_file(self) -> Path:
        return self.data / "flavors.toml"

    @property
    def ironic_url_file(self) -> Path:
        return self.data / "ironic.url"

    @property
    def is_of_up(self) -> bool:
        """True if the settings name no servers, so the command uses a `moor up` on this machine."""
        return not self.addresses.bus_url and not self.addresses.db_url

    @property
    def ironic_url(self) -> str:
        """Ironic's REST API: the named one, or else that of `moor up`; empty if there is none."""
        if self.addresses.ironic_url or not self.is_of_up:
            return self.addresses.ironic_url
        return self.ironic_url_file.read_text().strip() if self.ironic_url_file.is_file() else ""

    @property
    def ironic_db_url(self) -> str:
        """The database of the bare-metal daemons' rows: the named one, or else that of `moor up`. Empty if neither exists, or
        if another Ironic is named.
        """
        is_named = self.addresses.ironic_db or self.addresses.ironic_url
        if is_named or not self.is_of_up or not self.database_file.is_file():
            return self.addresses.ironic_db
        return f"sqlite+aiosqlite:///{self.database_file}"

    @property
    def bus_url(self) -> str:
        """The named bus, or else that of a `moor up` on this machine."""
        return self.addresses.bus_url or f"unix://{self.socket}"


def settings_from(
    flags: Mapping[str, str], environment: Mapping[str, str], *, config: Path | None = None, here: Path
) -> Settings:
    """The settings of one command: its flags, then `MOOR_*` variables, then the settings file, then the defaults.

    `flags` maps keys to values, empty for flags that were not given. `here` is the directory of ./moorage.toml.
    """
    file, written = _written(config, environment, here)
    stated = {key: Stated(value, str(file)) for key, value in written.items() if key in _SHAPES}
    stated |= stated_in(environment)
    if data := environment.get("MOOR_DATA"):
        stated["data"] = Stated(data, "MOOR_DATA")
    for key, text in flags.items():
        if text:
            where = FLAGS[key]
            stated[key] = from_text(key, text, where) if key in READERS else Stated(text, where)
    kept = stated.get("data")
    return Settings(
        addresses=addresses_of(stated),
        data=_home(environment, "XDG_STATE_HOME", ".local/state") / "moorage"
        if kept is None
        else Path(str(kept.value)).expanduser().absolute(),
        file=file,
    )


def of_commands(
    environment: Mapping[str, str], *, config: Path | None = None, here: Path
) -> Mapping[str, object]:
    """The settings file's values for flags of single commands, such as `listen`, by key (OF_COMMANDS)."""
    _, written = _written(config, environment, here)
    return {key: value for key, value in written.items() if key in OF_COMMANDS}


def tuning_from(environment: Mapping[str, str], *, config: Path | None = None, here: Path) -> Tuning:
    """The workers' settings that are set by `MOOR_*` variables or in the settings file."""
    _, written = _written(config, environment, here)
    return Tuning(environment, {key: value for key, value in written.items() if key in SECTIONS})


def _written(
    config: Path | None, environment: Mapping[str, str], here: Path
) -> tuple[Path | None, dict[str, Any]]:
    """The path of the settings file and the checked values in it; None and no values if there is no file."""
    home = _home(environment, "XDG_CONFIG_HOME", ".config")
    named = config or environment.get("MOOR_CONFIG", "")
    usual = (each for each in (here / "moorage.toml", home / "moorage" / "config.toml") if each.is_file())
    file = Path(named) if named else next(usual, None)
    if file is None:
        return None, {}
    try:
        written = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise BadSetting("config", str(file), "the settings file", f"cannot be read: {problem}") from None
    return file, {key: _value(key, value, str(file)) for key, value in written.items()}


def _home(environment: Mapping[str, str], variable: str, usual: str) -> Path:
    """The directory that an XDG variable names, or else its default `usual` in the user's home directory.

    As the XDG specification says, a relative path in the variable is ignored.
    """
    stated = Path(environment.get(variable, ""))
    if stated.is_absolute():
        return stated
    return (Path(environment["HOME"]) if environment.get("HOME") else Path.home()) / usual


def _value(key: str, value: object, where: str) -> Value | bool | float | dict[str, Tuned]:
    if key not in _KNOWN:
        near = get_close_matches(key, _KNOWN, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(_KNOWN))}"
        raise BadSetting(key, value, where, f"there is no such setting; {hint}")
    kind, called = _KNOWN[key]
    match value:
        case dict() if key in SECTIONS:
            return tuned_by(SECTIONS[key], value, where)
        case bool() | int() | str() if type(value) is kind:
            return value
        case int() | float() if kind is float and not isinstance(value, bool):
            return float(value)
        case list() if kind is list and all(isinstance(each, str) for each in value):
            return tuple(value)
        case dict() if kind is dict and all(isinstance(each, str) for each in value.values()):
            return value
        case _:
            raise BadSetting(key, value, where, f"must be {called}")
