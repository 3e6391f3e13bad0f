"""What every command takes its settings from: flags, then `MOOR_*` variables, then a TOML file, then the defaults.

    bus_url = "amqp://moorage:...@localhost/"
    db_url = "postgresql+asyncpg://moorage:...@localhost/moorage"
    placement_db_url = "postgresql+asyncpg://moorage:...@localhost/placement"      # else in the other database
    ironic_db_url = "postgresql+asyncpg://moorage:...@localhost/ironic_sync"       # the same
    cells = ["harbour", "island"]
    data = "/var/lib/moorage"               # where `moor up` keeps everything

    listen = "127.0.0.1:8780"               # and whatever else a flag has a variable for, named as that is

    [scheduler]                             # and every other section of moor/tuning.py: the settings of workers
    instances_per_host_max = 60

    [cell_bus_urls]
    island = "amqp://moorage:...@island/"

The file is the one that is named (`--config FILE`, `MOOR_CONFIG`), or else ./moorage.toml, or else
$XDG_CONFIG_HOME/moorage/config.toml. They are not mixed: the first that is there is the file.
"""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msgspec import Struct

from bus.places import READERS, BadSetting, Places, Stated, Value, from_text, places_of, stated_in
from bus.tuning import Tuned, tuned_by
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
DATA_VARIABLE = "MOOR_DATA"
CONFIG_VARIABLE = "MOOR_CONFIG"
SOCKET = "bus.sock"
DATABASE = "moor.db"
IRONIC_URL = "ironic.url"
FLAVORS = "flavors.toml"

# How each key of the file is written there, and what that is called.
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
# The keys of single commands' flags, each named as the flag's variable is, but for MOOR_.
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
    "compute_hosts": (int, "a whole number"),
    "ironic_sim_nodes": (int, "a whole number"),
    **dict.fromkeys(("http_idle_s", "http_head_s", "http_body_s"), (int, "a whole number of seconds")),
    **dict.fromkeys(("http_connections", "http_connections_per_address"), (int, "a whole number")),
    "cors_origins": (list, "a list of texts"),
}
_KNOWN = {**_SHAPES, **OF_COMMANDS, **dict.fromkeys(SECTIONS, (dict, "a table"))}


class Settings(Struct, frozen=True, kw_only=True):
    """What was stated, checked; one object for a command."""

    places: Places
    # Where `moor up` keeps its database, its journal and its socket.
    data: Path
    # The file that was read, if there was one.
    file: Path | None = None

    @property
    def socket(self) -> Path:
        return self.data / SOCKET

    @property
    def database_file(self) -> Path:
        return self.data / DATABASE

    @property
    def flavors_file(self) -> Path:
        return self.data / FLAVORS

    @property
    def ironic_url_file(self) -> Path:
        return self.data / IRONIC_URL

    @property
    def is_of_up(self) -> bool:
        """No servers are named: everything is that of a `moor up` on this machine."""
        return not self.places.bus_url and not self.places.db_url

    @property
    def ironic_url(self) -> str:
        """Ironic's REST API that was named, or else that of the `moor up`; empty if there is none."""
        if self.places.ironic_url or not self.is_of_up:
            return self.places.ironic_url
        return self.ironic_url_file.read_text().strip() if self.ironic_url_file.is_file() else ""

    @property
    def ironic_db_url(self) -> str:
        """The database of the bare-metal daemons' rows; empty if none is named and there was no `moor up` here, or another
        Ironic is named.
        """
        is_named = self.places.ironic_db or self.places.ironic_url
        if is_named or not self.is_of_up or not self.database_file.is_file():
            return self.places.ironic_db
        return f"sqlite+aiosqlite:///{self.database_file}"

    @property
    def bus_url(self) -> str:
        """The bus that was named, or else that of a `moor up` on this machine."""
        return self.places.bus_url or f"unix://{self.socket}"


def settings_from(
    flags: Mapping[str, str], environment: Mapping[str, str], *, config: Path | None = None, here: Path
) -> Settings:
    """`flags` by the names of the keys, empty where they were not given; `here` is where ./moorage.toml is looked for."""
    file = _file(config, environment, here)
    written = {} if file is None else _written(file)
    stated = {key: Stated(value, str(file)) for key, value in written.items() if key in _SHAPES}
    stated |= stated_in(environment)
    if data := environment.get(DATA_VARIABLE):
        stated["data"] = Stated(data, DATA_VARIABLE)
    for key, text in flags.items():
        if text:
            where = FLAGS[key]
            stated[key] = from_text(key, text, where) if key in READERS else Stated(text, where)
    kept = stated.get("data")
    return Settings(
        places=places_of(stated),
        data=_state_home(environment) if kept is None else Path(str(kept.value)).expanduser().absolute(),
        file=file,
    )


def of_commands(
    environment: Mapping[str, str], *, config: Path | None = None, here: Path
) -> Mapping[str, object]:
    """What the file says for flags of single commands, by its keys."""
    file = _file(config, environment, here)
    written = {} if file is None else _written(file)
    return {key: value for key, value in written.items() if key in OF_COMMANDS}


def tuning_from(environment: Mapping[str, str], *, config: Path | None = None, here: Path) -> Tuning:
    """What is stated of workers' settings."""
    file = _file(config, environment, here)
    written = {} if file is None else _written(file)
    return Tuning(environment, {key: value for key, value in written.items() if key in SECTIONS})


def _file(config: Path | None, environment: Mapping[str, str], here: Path) -> Path | None:
    named = config or (Path(text) if (text := environment.get(CONFIG_VARIABLE, "")) else None)
    if named is not None:
        return named
    home = _home(environment, "XDG_CONFIG_HOME", ".config")
    places = (here / "moorage.toml", home / "moorage" / "config.toml")
    return next((place for place in places if place.is_file()), None)


def _state_home(environment: Mapping[str, str]) -> Path:
    return _home(environment, "XDG_STATE_HOME", ".local/state") / "moorage"


def _home(environment: Mapping[str, str], variable: str, usual: str) -> Path:
    """As the XDG base directories have it: what is not absolute does not count."""
    stated = Path(environment.get(variable, ""))
    if stated.is_absolute():
        return stated
    return (Path(environment["HOME"]) if environment.get("HOME") else Path.home()) / usual


def _written(file: Path) -> dict[str, Any]:
    where = str(file)
    try:
        written = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise BadSetting("config", where, "the file", f"cannot be read: {problem}") from None
    return {key: _value(key, value, where) for key, value in written.items()}


def _value(key: str, value: object, where: str) -> Value | bool | int | dict[str, Tuned]:
    if key not in _KNOWN:
        near = get_close_matches(key, _KNOWN, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(_KNOWN))}"
        raise BadSetting(key, value, where, f"there is no such setting; {hint}")
    kind, called = _KNOWN[key]
    match value:
        case dict() if key in SECTIONS:
            return tuned_by(SECTIONS[key], value, where)
        case bool() if kind is bool:
            return value
        case int() if kind is int and not isinstance(value, bool):
            return value
        case str() if kind is str:
            return value
        case list() if kind is list and all(isinstance(each, str) for each in value):
            return tuple(value)
        case dict() if kind is dict and all(isinstance(each, str) for each in value.values()):
            return value
        case _:
            raise BadSetting(key, value, where, f"must be {called}")
