"""Where a command's settings come from, and the errors for invalid ones."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from bus.addresses import ADDRESSES
from kit.health import Listen, read_health_address
from kit.settings import BadSetting, without_password
from moor.commands import app
from moor.settings import sources
from moor.worker_settings import SECTIONS

HERE = Path("/nowhere")
NO_FLAGS: dict[str, str] = {}


def a_file(place: Path, text: str) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


# Which of them counts


def test_a_flag_overrides_a_variable_and_a_variable_overrides_the_file(tmp_path: Path) -> None:
    file = a_file(
        tmp_path / "c.toml", 'bus_url = "unix:///file"\ndb_url = "sqlite:////file"\ncells = ["of-file"]\n'
    )
    environment = {
        "MOOR_BUS_URL": "unix:///variable",
        "MOOR_DB_URL": "sqlite:////variable",
        "MOOR_CELLS": " ",
    }

    addresses = sources(environment, config=file, here=HERE).of_command({"bus_url": "unix:///flag"}).addresses

    assert addresses.bus_url == "unix:///flag"
    assert addresses.db_url == "sqlite+aiosqlite:////variable"
    assert addresses.cells == ("of-file",)


def test_the_file_is_the_named_one_or_the_one_here_or_the_one_at_home(tmp_path: Path) -> None:
    flagged = a_file(tmp_path / "flagged.toml", 'bus_url = "unix:///flagged"')
    named = a_file(tmp_path / "named.toml", 'bus_url = "unix:///named"')
    here = a_file(tmp_path / "here" / "moorage.toml", 'bus_url = "unix:///here"').parent
    a_file(tmp_path / "home" / "moorage" / "config.toml", 'bus_url = "unix:///home"')
    at_home = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    with_variable = {**at_home, "MOOR_CONFIG": str(named)}

    def bus(environment: dict[str, str], where: Path, config: Path | None = None) -> str:
        return sources(environment, config=config, here=where).of_command(NO_FLAGS).bus_url

    assert bus(with_variable, here, flagged) == "unix:///flagged"
    assert bus(with_variable, here) == "unix:///named"
    assert bus(at_home, here) == "unix:///here"
    assert bus(at_home, tmp_path) == "unix:///home"


def test_without_a_bus_it_is_that_of_moor_up_in_the_data_directory() -> None:
    at_home = sources({"HOME": "/h"}, here=HERE).of_command(NO_FLAGS)
    of_state = sources({"HOME": "/h", "XDG_STATE_HOME": "/s"}, here=HERE).of_command(NO_FLAGS)
    elsewhere = sources({"HOME": "/h", "MOOR_DATA": "/d"}, here=HERE).of_command(NO_FLAGS)

    assert at_home.bus_url == "unix:///h/.local/state/moorage/bus.sock"
    assert of_state.bus_url == "unix:///s/moorage/bus.sock"
    assert elsewhere.bus_url == "unix:///d/bus.sock"
    assert sources({"MOOR_DATA": "/d"}, here=HERE).of_command({"data": "/f"}).data == Path("/f")


# Their contents


def test_a_file_has_the_same_settings_as_variables(tmp_path: Path) -> None:
    file = a_file(
        tmp_path / "moorage.toml",
        'cells = ["harbour", "island"]\n[cell_bus_urls]\nisland = "amqp://i/"\n[cell_db_urls]\nisland = "sqlite:////i.db"\n',
    )

    said = sources({}, config=file, here=HERE).of_command(NO_FLAGS).addresses

    assert said == ADDRESSES.read(
        {
            "MOOR_CELLS": "harbour,island",
            "MOOR_CELL_BUS_URLS": "island=amqp://i/",
            "MOOR_CELL_DB_URLS": "island=sqlite+aiosqlite:////i.db",
        }
    )


@pytest.mark.parametrize(
    ("variable", "url"), [("MOOR_CELL_BUS_URLS", "amqp://i/"), ("MOOR_CELL_DB_URLS", "sqlite:////i.db")]
)
def test_the_address_of_a_cell_that_is_not_listed_is_refused(variable: str, url: str) -> None:
    with pytest.raises(
        BadSetting, match=f"{variable}.: .* has 'reef': there is no such cell; the cells are harbour, island"
    ):
        ADDRESSES.read({"MOOR_CELLS": "harbour,island", variable: f"reef={url}"})


# Invalid settings


@pytest.mark.parametrize(
    ("variable", "value", "what"),
    [
        ("MOOR_BUS_URL", "http://h", r"bus_url is 'http://h' \(MOOR_BUS_URL\): the scheme must be amqp"),
        ("MOOR_BUS_URL", "amqp://", "bus_url is 'amqp://' .* names no host"),
        (
            "MOOR_BUS_URL",
            "amqp://[h",
            r"bus_url is .* \(MOOR_BUS_URL\): its host is '\[h:\*\*\*': write name, name:port, or",
        ),
        (
            "MOOR_BUS_URL",
            "amqp://h:x/",
            r"bus_url is 'amqp://h:\*\*\*' .* its host is 'h:\*\*\*': .* a number as the port",
        ),
        (
            "MOOR_IRONIC_URL",
            "http://h:99999",
            "ironic_url is 'http://h:99999' .* the port as a number up to 65535",
        ),
        ("MOOR_BUS_URL", "unix://", "bus_url is 'unix://' .* names no socket"),
        ("MOOR_DB_URL", "mysql://h/x", "db_url is 'mysql://h/x' .* sqlite or postgresql"),
        ("MOOR_PLACEMENT_DB_URL", "mysql://h/x", "placement_db_url is 'mysql://h/x' .* sqlite or postgresql"),
        ("MOOR_IRONIC_DB_URL", "mysql://h/x", "ironic_db_url is 'mysql://h/x' .* sqlite or postgresql"),
        ("MOOR_DB_URL", "sqlite://", "db_url is 'sqlite://' .* names no file"),
        ("MOOR_DB_URL", "postgresql://h", "db_url is 'postgresql://h' .* names no database"),
        ("MOOR_CELLS", "cell0", r"cells is 'cell0' \(MOOR_CELLS\): this name is reserved"),
        ("MOOR_CELLS", "harbour,Über", r"cells is 'Über' \(MOOR_CELLS\): a cell's name"),
        (
            "MOOR_CELL_BUS_URLS",
            "amqp://h/",
            r"cell_bus_urls is 'amqp://h/' \(MOOR_CELL_BUS_URLS\): write cell=url",
        ),
        ("MOOR_CELL_BUS_URLS", "a=ftp://h", "cell_bus_urls.a is 'ftp://h'"),
        (
            "MOOR_BUS_URL",
            "amqp://u:p@a,b:0/",
            r"bus_url is 'amqp://u:\*\*\*@a,b:0/' .* host 2 of 2 is 'b:0': its port must",
        ),
        (
            "MOOR_BUS_URL",
            "amqp://a:5672,b:x/",
            r"host 2 of 2 is 'b:\*\*\*': its port must be a whole number from 1 to 65535",
        ),
        ("MOOR_BUS_URL", "amqp://a:,b/", "host 1 of 2 is 'a:': its port must be a whole number"),
        ("MOOR_BUS_URL", "amqp://a,,b/", "host 2 of 3 is '': it has no name; is there a comma too many"),
        ("MOOR_BUS_URL", "amqp://a,b,a/", "host 3 of 3 is 'a': it is named twice"),
        (
            "MOOR_BUS_URL",
            "amqp://a,::1/",
            r"host 2 of 2 is '::1': write name, name:port, or \[IPv6 address\]:port",
        ),
        ("MOOR_BUS_URL", "amqp://a,b/x,c", "its virtual host has a comma, which is written as %2C"),
        ("MOOR_DB_URL", "postgresql://u:p@a,b:99999/n", "host 2 of 2 is 'b:99999': its port must be"),
        ("MOOR_DB_URL", "postgresql://a,b", "names no database"),
        (
            "MOOR_DB_URL",
            "postgresql://a,b/n?target_session_attrs=any",
            "its target_session_attrs is 'any', must be primary or read-write: workers write",
        ),
        ("MOOR_CELL_BUS_URLS", "c=amqp://a/,b", "cell_bus_urls is 'b' .* write cell=url"),
        ("MOOR_CELL_BUS_URLS", "a=amqp://h/,a=amqp://i/", "cell_bus_urls is 'a' .* named twice"),
        ("MOOR_CELL_DB_URLS", "A=sqlite:////x", "cell_db_urls is 'A'"),
    ],
)
def test_a_wrong_variable_is_named_with_its_value(variable: str, value: str, what: str) -> None:
    with pytest.raises(BadSetting, match=what):
        ADDRESSES.read({variable: value})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "bus_ulr = 'unix:///x'",
            r"bus_ulr \(.*c.toml\): there is no such setting; did you mean bus_url",
        ),
        (
            "workers = 3",
            "workers .* no such setting; known are auth, bus, bus_url",
        ),
        ("db_url = 7", "db_url is 7 .* must be a text"),
        ("cells = 'a,b'", "cells is 'a,b' .* must be a list of texts"),
        ("cells = ['a', 1]", "cells is .* must be a list of texts"),
        ("cell_db_urls = ['x']", "cell_db_urls is .* must be a table of texts"),
        ("lisen = 'x'", "lisen .* did you mean listen"),
        ("ironic = 7", r"ironic \(.*c.toml\): must be a table, written as \[ironic\]"),
        ("compute_hosts = '9'", "compute_hosts is '9' .* must be a whole number"),
        ("compute_hosts = true", "compute_hosts is True .* must be a whole number"),
        ("traces_share = true", "traces_share is True .* must be a number"),
        ("cors_origins = 'https://a'", "cors_origins is 'https://a' .* must be a list of texts"),
        ("bus_url = ", "config is .*c.toml.* cannot be read"),
    ],
)
def test_a_wrong_file_is_named_with_its_key_and_value(tmp_path: Path, text: str, what: str) -> None:
    file = a_file(tmp_path / "c.toml", text)

    with pytest.raises(BadSetting, match=what):
        sources({}, config=file, here=HERE).of_command(NO_FLAGS)


def test_a_named_file_must_exist() -> None:
    with pytest.raises(BadSetting, match=r"config is '/no/such.toml' .* cannot be read"):
        sources({"MOOR_CONFIG": "/no/such.toml"}, here=HERE).of_command(NO_FLAGS)


SECRET = "s3cr7t"  # noqa: S105 - of these tests


def test_the_value_of_a_variable_that_is_not_known_is_not_shown() -> None:
    with pytest.raises(BadSetting) as told:
        sources({"MOOR_OPENSTACK_PASWORD": SECRET}, here=HERE).of(SECTIONS["openstack"])

    assert (
        str(told.value)
        == "openstack.pasword (MOOR_OPENSTACK_PASWORD): there is no such setting; did you mean password?"
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://h/x?password=s3cr%2Ft", "postgresql://h/x?password=***"),
        (
            "postgresql://h/x?user=moor&password=s3cr&ssl=true",
            "postgresql://h/x?user=moor&password=***&ssl=true",
        ),
        ("amqp://u:s3cr@h/", "amqp://u:***@h/"),
        ("amqp//u:s3cr@h/", "amqp//u:***@h/"),
        ("amqp:/u:s3cr@h/", "amqp:***@h/"),
        ("{'c1': 'amqp://u:s3cr@h/'}", "{'c1': 'amqp://u:***@h/'}"),
        ("postgresql://moor@h/x?ssl=true", "postgresql://moor@h/x?ssl=true"),
        (
            "amqps://u:s3cr@h,[::1]:5671/v?certfile=/c&pasword=s3cr",
            "amqps://u:***@h,[::1]:5671/v?certfile=/c&pasword=***",
        ),
        ("('c=amqp://u:s3cr/t',)", "('c=amqp://u:***',)"),
        ("amqp://h:5672,[::1]:5673/v", "amqp://h:5672,[::1]:5673/v"),
    ],
)
def test_a_password_is_not_shown_wherever_a_url_has_it(url: str, shown: str) -> None:
    assert without_password(url) == shown


# The flags of single commands


def test_a_flag_overrides_its_variable_and_that_overrides_its_key(tmp_path: Path) -> None:
    file = a_file(tmp_path / "c.toml", 'listen = "10.0.0.1:1"\nauth = "basic"\nusers = "/nowhere"\n')

    def said(*flags: str, **environment: str) -> str:
        command = ["--config", str(file), "run", "placement-api", "--db", "sqlite:////x.db", *flags]
        done = CliRunner().invoke(app, command, env={"COLUMNS": "200", **environment})
        assert done.exit_code == 2
        return " ".join(done.output.split())

    assert "/nowhere" in said()
    assert "auth is none, which lets anyone in, and 10.0.0.1:1" in said(MOOR_AUTH="none")
    assert "auth is none, which lets anyone in, and 10.0.0.2:2" in said(
        MOOR_AUTH="none", MOOR_LISTEN="10.0.0.2:2"
    )
    flags = ("--auth", "noauth2", "--listen", "10.0.0.3:3")
    assert "auth is noauth2, which lets anyone in, and 10.0.0.3:3" in said(
        *flags, MOOR_AUTH="none", MOOR_LISTEN="10.0.0.2:2"
    )


def test_a_command_ignores_keys_of_other_commands(tmp_path: Path) -> None:
    file = a_file(tmp_path / "c.toml", 'listen = "10.0.0.1:1"\n')

    done = CliRunner().invoke(app, ["--config", str(file), "broker", "show"])

    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9100", ("127.0.0.1", 9100)),
        (":9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),  # noqa: S104 - what an operator may write
        ("[::1]:0", ("::1", 0)),
        ("localhost:80", ("localhost", 80)),
    ],
)
def test_a_port_alone_is_on_loopback(text: str, address: tuple[str, int]) -> None:
    assert read_health_address(text) == Listen(*address)
