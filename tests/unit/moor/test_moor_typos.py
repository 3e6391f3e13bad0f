"""A mistyped value of any option or argument is a line that names it, never a traceback: all commands, each option by its kind; values that
are given twice, that no option can have, or that contradict each other. Nothing is sent or served.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from moor.commands import app, command_of, names

# They serve until they are stopped, if nothing is wrong; so they are given addresses alone, none of which is right.
SERVE = ("up", "run", "demo", "load", "top", "check")
ADDRESSES = ("bus", "db", "placement_db", "ironic_db", "nova_bus")
WRONG_ADDRESSES = ("amqp://[", "amqp://h/?cafil=/x", "postgresql://h/x?sslrotcert=/x", "sqlite:///x?mode=ro")
WRONG_TEXTS = ("'", "a=b=c", "=", "a:b@c,d", "\u20ac\n")
WRONG_VALUES = {
    "path": ("/dev/null/x", "{directory}", "{directory}/binary"),
    "integer": ("x", "9" * 30, "-1"),
    "number": ("x", "inf", "-1"),
    "uuid": ("z",),
    "choice": ("z",),
    "boolean": (),
}
RIGHT_VALUES = {"path": "{directory}/binary", "integer": "1", "number": "1", "uuid": f"{0:032x}"}
Words = tuple[str, ...]


def leaves(found: click.Command, words: Words) -> Iterator[tuple[Words, click.Command]]:
    if isinstance(found, click.Group):
        for name, each in found.commands.items():
            yield from leaves(each, (*words, name))
    if not isinstance(found, click.Group) or found.invoke_without_command:
        yield words, found


COMMANDS = [leaf for name in names() for leaf in leaves(command_of(name), (name,))]


def right(parameter: click.Parameter) -> str:
    choices = getattr(parameter.type, "_choices", ())
    return choices[0] if choices else RIGHT_VALUES.get(parameter.type.name, "x")


def wrong(parameter: click.Parameter, *, serves: bool) -> Sequence[str]:
    if parameter.name in ADDRESSES or serves:
        return WRONG_ADDRESSES if parameter.name in ADDRESSES else ()
    return WRONG_VALUES.get(parameter.type.name, WRONG_TEXTS)


def lines(words: Words, found: click.Command) -> Iterator[list[str]]:
    """The command with each wrong value by itself, and with right ones where it needs others."""
    for tried in found.params:
        if isinstance(tried, click.Option) and tried.is_flag:
            continue
        for value in wrong(tried, serves=words[0] in SERVE):
            given = [
                (each, value if each is tried else right(each))
                for each in found.params
                if each.required or each is tried
            ]
            options = [
                word
                for each, text in given
                if isinstance(each, click.Option)
                for word in (each.opts[0], text)
            ]
            arguments = [text for each, text in given if isinstance(each, click.Argument)]
            yield [*words, *options, "--", *arguments]


def ended(line: Sequence[str], **environment: str) -> Result:
    return CliRunner().invoke(app, line, env={"COLUMNS": "200", **environment}, input="")


@pytest.mark.parametrize(("words", "found"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_no_mistyped_value_is_a_traceback(words: Words, found: click.Command, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    for line in lines(words, found):
        given = [each.format(directory=tmp_path) for each in line]
        bus = {} if "--bus" in line else {"MOOR_BUS_URL": "unix:///nonexistent/bus.sock"}
        done = ended(given, **bus)
        assert done.exception is None or isinstance(done.exception, SystemExit), given
        assert done.exit_code == 0 or done.output, given


NODES = ("node", "list", "--ironic-db")
DECLARE = ("broker", "declare", "--bus", "amqp://h/", "--users", "--credentials", "{directory}/c", "--ctl")
DELETE = ("application", "delete", "a", "--bus", "amqp://h/", "--ctl")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            (*NODES, "postgresql://moor@h/x?sslrotcert=/ca.pem"),
            "has the option 'sslrotcert', which does not exist; did you mean sslrootcert?",
        ),
        ((*NODES, "postgresql://moor@h/x?ssl=yes"), "its ssl is 'yes', must be disable, allow"),
        ((*NODES, "sqlite:////x.db?mode=ro"), "has the option 'mode', which does not exist; known are none"),
        (
            ("list", "--bus", "amqps://h/?cafil=/ca.pem"),
            "has the option 'cafil', which does not exist; did you mean cafile?",
        ),
        (("list", "--bus", "amqp://h/?heartbeat=soon"), "its heartbeat is 'soon', must be a whole number"),
        (("list", "--bus", "unix:///x?cafile=/x"), "has the option 'cafile', which does not exist"),
        ((*DECLARE, "nosuchctl"), "--ctl is 'nosuchctl': there is no such command"),
        ((*DECLARE, ""), "--ctl is '': there is no such command"),
        ((*DELETE, "'"), '--ctl is "\'": No closing quotation'),
        (("application", "create", "a", *DELETE[3:], "nosuchctl"), "--ctl is 'nosuchctl': there is no such"),
    ],
)
def test_a_misspelt_option_is_named(words: Words, told: str, tmp_path: Path) -> None:
    done = ended([each.format(directory=tmp_path) for each in words])

    assert (done.exit_code, [*tmp_path.iterdir()]) == (2, [])
    assert told in " ".join(done.output.split())


def test_a_password_with_a_question_mark_is_no_option() -> None:
    done = ended([*NODES, "postgresql://moor:a?b=c@127.0.0.1:1/x"])

    assert (done.exit_code, "cannot connect" in done.output) == (1, True), done.output


@pytest.mark.parametrize("verb", [("users", "--credentials", "{directory}/c", "--cells", "c1"), ("upgrade",)])
def test_of_several_databases_the_one_that_refuses_is_named(verb: Words, tmp_path: Path) -> None:
    words = ("db", *(each.format(directory=tmp_path) for each in verb))
    file = f"sqlite:///{tmp_path}/x.db"
    here = {} if verb[0] == "users" else {"MOOR_DB_URL": file, "MOOR_PLACEMENT_DB_URL": file}

    done = ended(words, **here, MOOR_IRONIC_DB_URL="postgresql://moor_operator:s3cr7t@127.0.0.1:1/ironic")

    assert (done.exit_code, "s3cr7t" in done.output) == (1, False), done.output
    assert (
        "postgresql+asyncpg://moor_operator:***@127.0.0.1:1/ironic: database: cannot connect" in done.output
    )


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["boot", "--request-id"], "--request-id"),
        (["group", "create", "web", "--policy", "affinity", "--id"], "--id"),
        (["aggregate", "create", "rack", "--id"], "--id"),
        (["provider", "create", "disk", "--id"], "--id"),
    ],
)
def test_a_value_that_is_no_uuid_is_named_with_its_argument_on_one_line(words: list[str], name: str) -> None:
    ended = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words, "web-1"])

    assert ended.exit_code == 2
    assert f"Invalid value for '{name}': 'web-1' is not a UUID" in ended.output


@pytest.mark.parametrize(
    ("written", "words", "said"),
    [
        ("", ["boot", "--count", "many"], "--count': 'many' is not a whole number"),
        ("", ["list", "--limit", "0"], "--limit': '0' must be at least 1"),
        ("", ["list", "-o", "xml"], "'xml' is none of table, wide, json, yaml"),
        ("", ["host", "list", "--mode", "off"], "--mode': 'off' is none of"),
        ("", ["host", "set"], "Missing argument '[NAME...] MODE'"),
        (
            "compute_hosts = -3",
            ["up"],
            "compute_hosts is -3 ({file}): must be a whole number, at least 0",
        ),
        ("compute_hosts = 20000", ["up"], "20000 must be at least 1 and at most 10,000 ({file})"),
        ("auth = 'nobody'", ["run", "placement-api"], "'nobody' is none of * ({file})"),
        ("", ["up", "--host-size", "numa_nodes=2,cores=4"], "host_size has 'cores', must be one of"),
        (
            "",
            ["run", "dashboard", "--bus", "unix:///none", "--dashboard-listen", "0.0.0.0:0"],
            "auth is none, which lets anyone in",
        ),
    ],
)
def test_a_value_that_an_option_cannot_have_is_named_with_the_file_that_has_it(
    tmp_path: Path, written: str, words: list[str], said: str
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(written)

    ended = CliRunner(env={"COLUMNS": "500"}).invoke(app, ["--config", str(file), *words])

    assert ended.exit_code == 2
    parts = [part.replace("{file}", str(file)) for part in said.split("*")]
    assert all(part in ended.output for part in parts)


# The options that take any number, each with its command.
NUMBERS = {
    f"{' '.join(words)} {option.name}": (found, max(option.opts, key=len))
    for words, found in COMMANDS
    for option in found.params
    if option.type.name == "number"
}


@pytest.mark.parametrize(("command", "option"), NUMBERS.values(), ids=[*NUMBERS])
def test_no_option_is_nan(command: Any, option: str) -> None:
    with pytest.raises(click.BadParameter, match="'nan' is not a number") as wrong:
        command.make_context("moor", [option, "nan"])

    assert option in wrong.value.format_message()


def test_a_mistyped_command_is_told_the_nearest_ones() -> None:
    for words, near in ((["lst"], "'list'"), (["demmo"], "'demo'"), (["group", "sho"], "'show'")):
        ended = CliRunner().invoke(app, words)
        assert (ended.exit_code, f"Did you mean {near}?" in ended.output) == (2, True)


def test_the_shell_is_taught_to_complete_once_and_only_a_shell_that_can(tmp_path: Path) -> None:
    started = tmp_path / ".bashrc"
    started.write_text("alias ll='ls -l'\n")
    at_home = {"HOME": str(tmp_path)}
    for _ in range(2):
        ended = CliRunner(env=at_home | {"SHELL": "/bin/bash"}).invoke(app, ["--install-completion"])
        assert ended.exit_code == 0

    assert started.read_text() == "alias ll='ls -l'\neval \"$(_MOOR_COMPLETE=bash_source moor)\"\n"
    refused = CliRunner(env=at_home | {"SHELL": "/bin/csh"}).invoke(app, ["--install-completion"])
    assert (refused.exit_code, "SHELL is 'csh'" in refused.output) == (2, True)


PORT = "11111111-1111-1111-1111-111111111111"
LOAD = ("load", "--boots", "1", "--hosts", "2")
NOVA = ("nova", "import", "--api-db", "mysql://u:secret@127.0.0.1:1/api")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            (*LOAD, "--scheduler", "host_subset_size=2", "--scheduler", "host_subset_size=3"),
            "--scheduler gives host_subset_size",
        ),
        ((*LOAD, "--workers", "scheduler=1", "--workers", "scheduler=2"), "--workers gives scheduler"),
        (
            ("provider", "set", "inventory", "h", "VCPU=1", "VCPU=2"),
            "gives VCPU twice, as 'VCPU=1' and as 'VCPU=2'",
        ),
        (
            ("provider", "set", "inventory", "h", "VCPU=1,reserved=0,reserved=1"),
            "gives reserved twice, as 0 and as 1",
        ),
        (("candidates", "VCPU=1", "VCPU=2"), "the request gives VCPU twice, as 1 and as 2"),
        (("candidates", "--group", "a VCPU=1 VCPU=2"), "the group 'a' gives VCPU"),
        (("candidates", "VCPU=1", "tree:a", "tree:b"), "the request gives in_tree twice, as 'a' and as 'b'"),
        (
            ("candidates", "--group", "a VCPU=1", "--group", "a VCPU=2"),
            "--group gives a twice, as 'a VCPU=1' and as",
        ),
        (
            ("boot", "--resources", "VGPU=1", "--extra-spec", "resources:VGPU=2"),
            "gives resources:VGPU twice, as '1' and as '2'",
        ),
        (
            ("flavor", "create", "f", "--trait", "CUSTOM_A", "--extra-spec", "trait:CUSTOM_A=forbidden"),
            "gives trait:CUSTOM_A twice, as 'required' and as 'forbidden'",
        ),
        (
            ("boot", "--vcpus", "1", "--image-property", "a=1", "--image-property", "a=2"),
            "--image-property gives a",
        ),
        (("boot", "--vcpus", "1", "--volume", f"{PORT} VCPU=1 VCPU=2"), "--volume gives VCPU"),
        (("quota", "set", "shop", "instances=1", "instances=2"), "gives instances twice, as '1' and as '2'"),
        (("boot", "--vcpus", "1", "--port", PORT, "--port", f"{PORT} VCPU=2"), f"--port gives {PORT} twice"),
        (("boot", "--vcpus", "1", "--port", f"{PORT} VCPU=1 VCPU=2"), "--port gives VCPU"),
        (
            ("boot", "--vcpus", "1", "--port", f"{PORT} network=a network=b"),
            "--port gives network twice, as 'a' and as 'b'",
        ),
        (
            ("boot", "--vcpus", "1", "--meta", "password=secret-1", "--meta", "password=secret-2"),
            "--meta gives password twice, as *** and as ***",
        ),
        (("boot", "--vcpus", "1", "--extra-spec", "a=1", "--extra-spec", "a=1"), "--extra-spec gives a"),
        (
            ("device-profile", "create", "g", "--group", "resources:VGPU=1,resources:VGPU=2"),
            "--group 'resources:VGPU=1,resources:VGPU=2' gives VGPU twice, as 1 and as 2",
        ),
        (
            ("device-profile", "create", "g", "--group", "trait:CUSTOM_A=required,trait:CUSTOM_A=forbidden"),
            "gives CUSTOM_A twice, as 'required' and as 'forbidden'",
        ),
        (
            (*NOVA, "--cell-db", "c=mysql://u:secret@h/1", "--cell-db", "c=mysql://u:secret@h/2"),
            "--cell-db names the cell c twice",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_a_name_given_twice_is_an_error_that_shows_both_values(
    words: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    ran = CliRunner().invoke(app, [*words])

    assert ran.exit_code == 2, ran.output
    assert told in ran.output
    assert "twice" in ran.output
    assert "secret" not in ran.output


@pytest.mark.parametrize(
    "words", [["boot"], ["boot", "--name", "web"], ["plan"], ["boot", "--trait", "HW_CPU_X86_AVX"]]
)
def test_without_a_size_nothing_is_sent_nor_connected(words: list[str]) -> None:
    nowhere: dict[str, Any] = {"COLUMNS": "300", "MOOR_BUS_URL": "amqp://127.0.0.1:1/"}
    ended = CliRunner(env=nowhere).invoke(app, words)
    assert (ended.exit_code, "no size is named: give --flavor NAME, or --vcpus" in ended.output) == (2, True)
    sized = CliRunner(env=nowhere).invoke(app, [*words, "--disk", "1"])
    assert (sized.exit_code, "no broker" in sized.output) == (1, True), sized.output


KEYSTONE = {
    "MOOR_OPENSTACK_KEYSTONE_URL": "https://cloud.example.com/identity",
    "MOOR_OPENSTACK_USER": "placement",
    "MOOR_OPENSTACK_PASSWORD": "known to both",
    "MOOR_OPENSTACK_CA_FILE": "/nowhere",
}


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--listen 8780", "listen is '8780'"),
        *(
            (f"--auth {auth} --listen {listen}", "lets anyone in")
            for auth in ("none", "noauth2")
            for listen in ("[::]:8780", "192.0.2.7:8780", "cloud.example.com:8780")
        ),
        ("--auth basic", "needs --users"),
        ("--auth basic --users /nowhere/users", "/nowhere/users"),
        ("--auth keystone", "openstack.ca_file is '/nowhere'"),
        ("--policy strict", "policy is 'strict'"),
        ("--prefix placement", "prefix is 'placement'"),
        ("--tls-cert chain.pem", "only one of --tls-cert and --tls-key"),
        ("--tls-clients-ca ca.pem", "and without --tls-cert"),
        ("--tls-cert /nowhere --tls-key /nowhere", "cannot be used"),
    ],
)
def test_wrong_flags_are_named_before_anything_is_served(flags: str, why: str) -> None:
    words = [
        "run",
        "placement-api",
        "--bus",
        "unix:///nowhere/bus.sock",
        "--db",
        "sqlite:///nowhere",
        *flags.split(),
    ]
    ran = CliRunner(env={**KEYSTONE, "COLUMNS": "300"}).invoke(app, words)

    assert (ran.exit_code, why in " ".join(ran.output.replace("│", " ").split())) == (2, True), ran.output
