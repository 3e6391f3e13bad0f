"""A mistyped value of any option or argument is a line that says so, never a traceback: all commands, each option by its kind."""

from collections.abc import Iterator, Sequence
from pathlib import Path

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
