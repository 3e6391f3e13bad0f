"""Reads the settings of a command from its flags, `MOOR_*` variables, a TOML file and the defaults, in this order.

A file may contain:

    bus_url = "amqp://moorage:...@localhost/"
    db_url = "postgresql+asyncpg://moorage:...@localhost/moorage"
    placement_db_url = "postgresql+asyncpg://moorage:...@localhost/placement"      # default: db_url
    ironic_db_url = "postgresql+asyncpg://moorage:...@localhost/ironic_sync"       # default: db_url
    cells = ["harbour", "island"]
    data = "/var/lib/moorage"               # the directory of `moor up`

    listen = "127.0.0.1:8780"               # any flag that has a variable, named like the variable

    [scheduler]                             # the settings of a worker; `moor settings` prints all of them
    instances_per_host_max = 60

    [cell_bus_urls]
    island = "amqp://moorage:...@island/"

The file is the one named by `--config FILE` or `MOOR_CONFIG`, or else ./moorage.toml, or else
$XDG_CONFIG_HOME/moorage/config.toml. Only the first file that exists is read.
"""

import logging
import os
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, structs

from bus.addresses import Addresses
from kit.logs import check_format, check_level, log_again
from kit.settings import NOT_SHOWN, BadSetting, Section, Stated, near, shown, tell_followers

S = TypeVar("S", bound=Struct)


def _check_network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError:
        raise ValueError("write an address or a network, as 10.0.0.5 or 10.0.0.0/24") from None
    return text


class GeneralSettings(Addresses, frozen=True, kw_only=True):
    """All settings that stand in no table: the addresses, and the flags of single commands that have a variable."""

    data: Annotated[
        str,
        Meta(
            description="The directory of `moor up`, with its database, journal and socket. Empty: $XDG_STATE_HOME/moorage, or "
            "~/.local/state/moorage.",
            extra={"flag": "--data", "metavar": "DIR"},
        ),
    ] = ""
    compute_driver: Annotated[
        Literal["simulated", "libvirt"],
        Meta(
            description="What controls the hosts of a cell: simulated, or libvirt with the settings of [libvirt]; needs moorage[libvirt]."
        ),
    ] = "simulated"
    compute_hosts: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(
            description="How many simulated hosts each cell has; `moor up` has 20. More needs more memory in the compute's process."
        ),
    ] = 100
    compute_host_size: Annotated[
        str,
        Meta(
            description="What differs from the usual size of a simulated host: cells (two NUMA cells with dedicated processors, huge pages and devices), or "
            "vcpus=64,numa_nodes=2,pcpus=16,pages=2048:8192,device=pci:10de:20b0."
        ),
    ] = ""
    compute_place: Annotated[
        str,
        Meta(
            description="Where simulated hosts are: dc1/row{80}/rack{20} has a new rack after each 20 hosts, and a new row after each 80."
        ),
    ] = ""
    place_levels: Annotated[
        str,
        Meta(
            description="What the levels of places are called, the largest first: a name for each, with commas."
        ),
    ] = "dc,hall,row,rack"
    nova_api_db: Annotated[
        str,
        Meta(
            description="Nova's API database, to import from: mysql://USER:PASSWORD@HOST/nova_api, or sqlite:///FILE."
        ),
    ] = ""
    nova_cell_dbs: Annotated[
        tuple[str, ...],
        Meta(
            description="The databases of Nova's cells, each as CELL=URL with the name of the cell here that gets its hosts."
        ),
    ] = ()
    nova_placement_db: Annotated[
        str,
        Meta(
            description="The database of Nova's Placement. Without it, what instances hold follows from their flavors."
        ),
    ] = ""
    ironic_name: Annotated[
        str,
        Meta(description="The name of a bare-metal daemon in the ring. Each daemon needs one of its own."),
    ] = ""
    project: Annotated[
        str,
        Meta(description="The project. An application must name one of its projects."),
    ] = ""
    health_listen: Annotated[
        str,
        Meta(
            description="Serve /healthz, /readyz and /metrics at this address; a port without an address means loopback."
        ),
    ] = ""
    log_level: Annotated[
        str,
        Meta(
            description="The least level that is logged: debug, info, warning, error or critical. Empty: info, and warning in `moor up` "
            "without --verbose. At info every boot has some lines.",
            extra={"check": check_level},
        ),
    ] = ""
    log_format: Annotated[
        str,
        Meta(
            description="The format of the log: text for people, json for programs.",
            extra={"check": check_format},
        ),
    ] = "text"
    traces_url: Annotated[
        str,
        Meta(
            description="Send traces to this OTLP receiver, as http://localhost:4318; needs moorage[otel]. Empty: none."
        ),
    ] = ""
    traces_share: Annotated[
        Annotated[float, Meta(ge=0, le=1)],
        Meta(
            description="The share of requests that begin a trace, if they are in none yet. More shows more, for CPU in every worker."
        ),
    ] = 1.0
    listen: Annotated[
        str,
        Meta(description="The address of placement's HTTP API."),
    ] = "127.0.0.1:8780"
    dashboard_listen: Annotated[
        str,
        Meta(description="The address of the web dashboard; `off`: `moor up` serves none."),
    ] = "127.0.0.1:8781"
    dashboard_names: Annotated[
        str,
        Meta(
            description="The host names under which browsers reach the web dashboard, with commas, beside those of this machine and that to listen on."
        ),
    ] = ""
    trusted_proxies: Annotated[
        tuple[Annotated[str, Meta(extra={"check": _check_network})], ...],
        Meta(
            description="The addresses and networks of the reverse proxies on other machines: what they say in X-Forwarded-For and X-Forwarded-Proto "
            "counts, as that of proxies on this machine does. Logins are limited by the client's address, so a proxy that is not named here "
            "has one limit for all its clients."
        ),
    ] = ()
    auth: Annotated[
        str,
        Meta(
            description="How clients of placement's HTTP API authenticate: none (anyone, from this machine only), basic (users of a file), "
            "keystone (Keystone tokens), or noauth2 (anyone, under any name; for tests)."
        ),
    ] = "none"
    users: Annotated[
        str,
        Meta(
            description="For basic: a file written by `htpasswd -B`. An optional third field is the project to which the user is bound, and a fourth its role there: reader or member."
        ),
    ] = ""
    policy: Annotated[
        str,
        Meta(description="The policy that says which role may do what: legacy, secure, open, or a file."),
    ] = "legacy"
    cors_origins: Annotated[
        tuple[str, ...],
        Meta(description="The origins whose pages a browser may let read the answers; * means any."),
    ] = ()
    prefix: Annotated[
        str,
        Meta(description="A path before all paths of placement's HTTP API, for proxies."),
    ] = ""
    tls_cert: Annotated[
        str,
        Meta(description="Serve TLS with this certificate chain (PEM)."),
    ] = ""
    tls_key: Annotated[
        str,
        Meta(description="The private key of tls_cert (PEM)."),
    ] = ""
    tls_clients_ca: Annotated[
        str,
        Meta(
            description="Accept only clients that show a certificate of an authority in this file (PEM). They log in besides, as auth says."
        ),
    ] = ""


GENERAL = Section(
    "",
    GeneralSettings,
    "every worker and command: the addresses, and the flags of single commands",
    others=("*",),
    reloaded=frozenset(("log_level", "log_format")),
)


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


class Sources(Struct, frozen=True):
    """Where settings are stated beside flags: in variables, and in a file, whose values are here by section."""

    environment: Mapping[str, str]
    written: Mapping[str, Mapping[str, Stated]] = {}
    # The settings file that was read, if there was one.
    file: Path | None = None

    def stated(self, section: Section[Any]) -> dict[str, Stated]:
        return {**self.written.get(section.name, {}), **section.in_environment(self.environment)}

    def of(self, section: Section[S], base: S | None = None, flags: Mapping[str, Stated] | None = None) -> S:
        """The settings of one section. For each setting the first of these counts that has it: `flags`, environment
        variables, the settings file, `base`.

        `base` has the running command's own defaults. Without it, the defaults are the worker's. A wrong value raises
        BadSetting.
        """
        return section.made_of({**self.stated(section), **(flags or {})}, base)

    def of_command(self, flags: Mapping[str, str]) -> Settings:
        """The settings of one command. `flags` are its flags, by key; empty ones were not given."""
        given = {
            key: GENERAL.stated(key, text, GENERAL.settings[key].extra["flag"])
            for key, text in flags.items()
            if text
        }
        top = self.of(GENERAL, flags=given)
        usual = _home(self.environment, "XDG_STATE_HOME", ".local/state") / "moorage"
        return Settings(
            addresses=msgspec.convert(top, Addresses, from_attributes=True),
            data=Path(top.data).expanduser().absolute() if top.data else usual,
            file=self.file,
        )


def sources(environment: Mapping[str, str], *, config: Path | None = None, here: Path) -> Sources:
    """Read the settings file, if there is one. `here` is the directory of ./moorage.toml."""
    home = _home(environment, "XDG_CONFIG_HOME", ".config")
    named = config or environment.get("MOOR_CONFIG", "")
    usual = (each for each in (here / "moorage.toml", home / "moorage" / "config.toml") if each.is_file())
    file = Path(named) if named else next(usual, None)
    if file is None:
        return Sources(environment)
    import tomllib  # noqa: PLC0415 - most commands read no file

    try:
        written = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise BadSetting("config", str(file), "the settings file", f"cannot be read: {problem}") from None
    top = {key: value for key, value in written.items() if key in GENERAL.settings}
    tables = {key: value for key, value in written.items() if key not in top}
    return Sources(
        environment, {**_checked_tables(tables, file), GENERAL.name: GENERAL.in_table(top, str(file))}, file
    )


def _checked_tables(tables: Mapping[str, Any], file: Path) -> dict[str, dict[str, Stated]]:
    """The settings of workers, each table with those of a section."""
    if not tables:
        return {}
    # The workers' settings are many modules, and most commands need none of them.
    from moor.worker_settings import SECTIONS  # noqa: PLC0415

    known = sorted((*GENERAL.settings, *SECTIONS))
    for key, value in tables.items():
        if key not in SECTIONS:
            raise BadSetting(key, NOT_SHOWN, str(file), f"there is no such setting; {near(key, known)}")
        if not isinstance(value, dict):
            raise BadSetting(key, NOT_SHOWN, str(file), f"must be a table, written as [{key}]")
    return {key: SECTIONS[key].in_table(table, str(file)) for key, table in tables.items()}


def _home(environment: Mapping[str, str], variable: str, usual: str) -> Path:
    """The directory that an XDG variable names, or else its default `usual` in the user's home directory.

    As the XDG specification says, a relative path in the variable is ignored.
    """
    stated = Path(environment.get(variable, ""))
    if stated.is_absolute():
        return stated
    return (Path(environment["HOME"]) if environment.get("HOME") else Path.home()) / usual


# Reads the settings file of a running worker again, on SIGHUP.
#
# A file that is wrong changes nothing: all of it is read and checked before the first setting changes. Settings that take effect only at
# the start keep their values, and the log names them.

log = logging.getLogger(__name__)


class HeldSection(Struct):
    """The settings of one section: as the process was given them, as they are `now`, and the flags that count before the file.

    `base` has the command's own defaults.
    """

    section: Section[Any]
    given: Struct
    now: Any
    flags: Mapping[str, Stated]
    base: Struct | None = None


class Change(Struct, frozen=True):
    """A setting whose value in the file is another than the one in force."""

    key: str
    before: Any
    after: Any
    where: str
    takes_effect: bool

    def __str__(self) -> str:
        before, after = shown(self.key, self.before), shown(self.key, self.after)
        return f"{self.key}: {before} -> {after} ({self.where})"


class Reloading:
    """Reads the settings file again, for the sections that the parts of this process hold."""

    def __init__(self, config: Path | None, here: Path, *, log_level: str) -> None:
        """`log_level` is the level if nothing says another."""
        self._config = config
        self._here = here
        self._log_level = log_level
        self._sections: list[HeldSection] = []

    def hold(
        self, section: Section[Any], given: Struct, flags: Mapping[str, Stated], base: Struct | None = None
    ) -> None:
        """From now on the followers of these settings are told of new values, and changes that need a restart are logged."""
        self._sections.append(HeldSection(section, given, given, flags, base))

    def reload(self) -> None:
        """Read the file, and change what can be changed. Never raises: a wrong file is only logged."""
        try:
            read = sources(os.environ, config=self._config, here=self._here)
            _check_all(read)
            fresh = [(each, *_reread(each, read)) for each in self._sections]
        except BadSetting as wrong:
            log.error("the settings stay as they are: %s", wrong)  # noqa: TRY400 - the text says everything
            return
        if read.file is None:
            log.warning("nothing was read again: there is no settings file")
            return
        # Nothing here fails, and nothing else runs in between.
        for held, values, _ in fresh:
            if values != held.now:
                held.now = values
                tell_followers(held.given, values)
        self._tell([change for *_, changes in fresh for change in changes], read.file)

    def _tell(self, changes: list[Change], file: Path) -> None:
        top = next((each.now for each in self._sections if each.section is GENERAL), GENERAL.kind())
        level = top.log_level or self._log_level
        # At the more talkative of the two levels.
        logging.getLogger().setLevel(min(logging.getLogger().level, logging.getLevelName(level)))
        for change in sorted(changes, key=lambda each: not each.takes_effect):
            log.warning("reloaded: %s" if change.takes_effect else "needs a restart: %s", change)
        now = sum(each.takes_effect for each in changes)
        log.warning(
            "%s was read again: %d settings changed, %d need a restart", file, now, len(changes) - now
        )
        log_again(level=level, form=top.log_format)


def _check_all(read: Sources) -> None:
    """All tables, also those of other workers: a file that is wrong anywhere is refused as at a start."""
    from moor.worker_settings import SECTIONS  # noqa: PLC0415 - many modules, for processes that get a SIGHUP

    for section in SECTIONS.values():
        read.of(section)


def _reread(held: HeldSection, read: Sources) -> tuple[Struct, list[Change]]:
    """The settings in force, with those that can change now as they are in the file; and what differs there."""
    section = held.section
    values = read.of(section, held.base, held.flags)
    stated = {**read.stated(section), **held.flags}
    changes = {
        field: Change(
            section.settings[field].key,
            getattr(held.now, field),
            getattr(values, field),
            stated[field].where if field in stated else "the default",
            field in section.reloaded,
        )
        for field in section.settings
        if getattr(values, field) != getattr(held.now, field)
    }
    new = {field: change for field, change in changes.items() if change.takes_effect}
    try:
        # They must not contradict those that stay either.
        now = structs.replace(held.now, **{field: change.after for field, change in new.items()})
    except ValueError as broken:
        first = next(iter(new.values()))
        why = f"{broken}, beside settings that need a restart"
        raise BadSetting(first.key, first.after, first.where, why) from None
    return now, [*changes.values()]
