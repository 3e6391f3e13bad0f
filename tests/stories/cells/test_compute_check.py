"""`python -m laboratory.check`: it passes both examples and the simulated compute, and finds each rule that a compute breaks."""

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bus.message import Parcel
from bus.topology import objects_of, user_of
from laboratory.check.rules import RULES, CheckRequest, Outcome, RuleFinding, check
from laboratory.check.session import CannotCheck
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.contracts.small_world import connected, publish, until_depth
from tests.contracts.sql_stores import migrated_database
from tests.running import closing
from tests.waiting import until

pytestmark = [pytest.mark.rabbitmq, pytest.mark.timeout(240)]

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
PIKA = (EXAMPLES / "own_compute_pika.py").read_text()
CELL = "c1"
USERS = (user_of("conductor", CELL), user_of("compute", CELL), user_of("operator"))
ALL = {each.name for each in RULES}
NEED_RESTART = {"restart", "restart between", "same shape"}
# A broken compute is found by its silence: each such rule takes as long.
LIMIT_S = 6.0


class Stage:
    """A broker with the users of a cell's workers, and the computes that run there."""

    def __init__(self, under_test: RabbitMQUnderTest, folder: Path) -> None:
        self.under_test, self.folder = under_test, folder
        self.compute_url = under_test.url(user_of("compute", CELL))

    def command(self, program: Path, *hosts: str) -> list[str]:
        keeps = "pika" in program.name or program.parent == self.folder
        between = [str(self.folder / "attempts.db")] if keeps else []
        return [sys.executable, str(program), self.compute_url, CELL, *between, *hosts]

    def restarting(self, command: list[str], **environment: str) -> str:
        """A shell command that kills the compute and starts it again."""
        pid, out = self.folder / "pid", self.folder / "out"
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        return (
            f"if [ -f {pid} ]; then kill -9 $(cat {pid}); fi; "
            f"{variables} nohup {shlex.join(command)} >> {out} 2>&1 & echo $! > {pid}"
        )

    def kill(self) -> None:
        pid = self.folder / "pid"
        if pid.exists():
            os.kill(int(pid.read_text()), signal.SIGKILL)

    async def check(self, *hosts: str, restart: str = "", beat_s: float = 30.0) -> Outcome:
        request = CheckRequest(
            bus=self.under_test.url(user_of("conductor", CELL)),
            watch_bus=self.under_test.url(user_of("operator")),
            cell=CELL,
            hosts=hosts,
            wait_s=60.0,
            limit_s=LIMIT_S,
            beat_s_max=beat_s,
            restart=restart,
        )
        return await check(request, lambda _: None)

    async def check_from_its_start(self, command: list[str], *hosts: str, beat_s: float = 30.0) -> Outcome:
        """Check the compute that this command starts. It starts when the check listens, as a user is told to do."""
        checking = asyncio.create_task(self.check(*hosts, beat_s=beat_s))
        async with connected(self.under_test.broker()) as connection:
            await until(
                lambda: connection.consumers(f"conductor.{CELL}.work"),
                "it listens",
                lambda found: found or checking.done(),
            )
        async with running(command):
            return await checking


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    async with closing(await RabbitMQUnderTest.start()) as (under_test,):
        await under_test.declare(objects_of((CELL,)))
        await under_test.add_users(USERS, (CELL,))
        here = Stage(under_test, folder)
        try:
            yield here
        finally:
            here.kill()


@asynccontextmanager
async def running(command: list[str]) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def broken(outcome: Outcome) -> dict[str, RuleFinding]:
    return {each.rule: each for each in outcome.findings if each.holds is False}


def tried(outcome: Outcome) -> set[str]:
    return {each.rule for each in outcome.findings if each.holds is not None}


async def keeps_rules(here: Stage, outcome: Outcome, rules: set[str] = ALL) -> None:
    """The compute keeps these; and the check has left no message behind, in no queue."""
    assert (broken(outcome), outcome.left, tried(outcome)) == ({}, (), rules)
    async with connected(here.under_test.broker()) as connection:
        for queue in ("dead", f"compute.{CELL}.work"):
            assert await connection.depth(queue) == 0, queue


async def test_the_example_with_aio_pika_keeps_all_rules_but_those_over_a_restart(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        command = here.command(EXAMPLES / "own_compute.py", "shed-1", "shed-2")
        outcome = await here.check_from_its_start(command, "shed-1", "shed-2")

        await keeps_rules(here, outcome, ALL - NEED_RESTART)


async def test_the_example_with_pika_keeps_all_rules(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        command = here.command(EXAMPLES / "own_compute_pika.py", "shed-1", "shed-2")
        outcome = await here.check("shed-1", "shed-2", restart=here.restarting(command))

        await keeps_rules(here, outcome)


async def test_the_simulated_compute_with_a_store_keeps_all_rules(tmp_path: Path) -> None:
    async with stage(tmp_path) as here, migrated_database("sqlite", "compute_sim") as database:
        command = [sys.executable, "-m", "tests.adversity.worker_process", "compute", CELL]
        restart = here.restarting(
            command,
            MOOR_BUS_URL=here.compute_url,
            MOOR_DB_URL=database,
            COMPUTES_KEEP="1",
            MOOR_LOG_LEVEL="CRITICAL",
        )
        outcome = await here.check(f"{CELL}-host-00001", f"{CELL}-host-00002", restart=restart)

        await keeps_rules(here, outcome)


# Each breaks one rule: the rule, and what is replaced in the example with pika.
FAULTS: dict[str, tuple[str, ...]] = {
    "spawn again": (
        'kept = kept or {"state": carry_out(order, new), "rank": 0}',
        ('if kept is not None and kept["state"] != "gone":\n'
        '                return {"type": "spawn.failed", "reason": "it exists"}\n'
        '            kept = kept or {"state": carry_out(order, new), "rank": 0}'),
    ),
    "never again": (
        'kept = kept or {"state"',
        'kept = kept if kept is not None and kept["state"] != "gone" else {"state"',
    ),
    "numbers": (
        'if rank < kept["rank"] or (rank == kept["rank"] and not save_as):',
        'if rank == kept["rank"] and not save_as:',
    ),
    "host.check": ('attempts.on(order["host"], order.get("after") or "")', 'attempts.on(order["host"])'),
    "other host": ('if order["host"] not in hosts:', "if not hosts:"),
    "no JSON": (
        "except (KeyError, TypeError, ValueError) as wrong:",
        ("except json.JSONDecodeError:\n                continue\n"
        "            except (KeyError, TypeError, ValueError) as wrong:"),
    ),
    "parcel": ("for line in body.splitlines():", "for line in body.splitlines()[:1]:"),
    "heartbeats": ("connection.call_later(BEAT_S, beat)", "pass"),
    "restart": ("attempts = Attempts(file)", 'attempts = Attempts(":memory:")'),
    "restart between": (
        "        is_read = True\n",
        ("        is_read = True\n"
        '        if method and b\'"type":"spawn"\' in body:\n'
        "            channel.basic_ack(method.delivery_tag)\n"
        "            connection.call_later(0.1, lambda: on_parcel(_, None, __, body))\n"
        "            return\n"),
        "        if is_read:\n            channel",
        "        if not method:\n            pass\n        elif is_read:\n            channel",
    ),
}  # fmt: skip
# And these in `make proof`.
MORE_FAULTS: dict[str, tuple[str, ...]] = {
    "report": ('"inventories": INVENTORIES', '"inventories": {}'),
    "facts": (
        'say("moor.events", {"type": "host.state", "hosts": [facts], "sequence": now})',
        "print(facts)",
    ),
    "destroy unknown": (
        '        case "destroy":\n',
        (
            '        case "destroy" if kept is None:\n'
            '            attempts[key] = {"state": "gone", "rank": 0}\n'
            "            return {}\n"
            '        case "destroy":\n'
        ),
        "            about = {",
        "            if not answer:\n                continue\n            about = {",
    ),
    "rebuild": (
        "            kept = changed(order, kept)",
        (
            '            if order["type"] == "respawn" and kept["state"] == "stopped":\n'
            '                return refused(order, "it is stopped")\n'
            "            kept = changed(order, kept)"
        ),
    ),
    "resize": (
        '            kept = {"state": carry_out(order, "gone"), "rank": 0}',
        (
            '            kept = {"state": carry_out(order, "gone"), "rank": 0}\n'
            "            for other in [each for each in attempts if each[:2] == key[:2]]:\n"
            "                attempts[other] = kept"
        ),
    ),
    "stopped": ('"stopped" if order.get("stopped") else "runs"', '"runs"'),
    "save": ('"saved": save_as}', '"saved": ""}'),
    "refusals": (
        '    return {"type": "stopped", **about}',
        '    return {"type": "stopped", "number": order["number"]}',
    ),
    "receive": (
        'source["state"] != ("runs" if order.get("live") else "stopped")',
        'source["state"] == "gone"',
    ),
    "move": ('("runs" if order.get("live") else "stopped")', '"stopped"'),
    "share": (
        '        case "spawn" | "receive":\n',
        (
            '        case "spawn" if "2147483647" in json.dumps(order["share"]):\n'
            '            raise ValueError("no host has so much")\n'
            '        case "spawn" | "receive":\n'
        ),
    ),
    "old share": (
        '        case "stop" | "start" | "respawn":\n',
        (
            '        case "respawn" if order["host"] not in json.dumps(order["share"][1]):\n'
            '            return refused(order, "its provider is gone")\n'
            '        case "stop" | "start" | "respawn":\n'
        ),
    ),
    "same shape": (
        '"id": host, "name": name, "inventories"',
        '"id": str(uuid.uuid4()), "parent": host, "name": name, "inventories"',
        '"providers": [tree]',
        '"providers": [{"id": host, "name": name + "-root"}, tree]',
    ),
    "unknown order": (
        '                order = envelope["message"]\n',
        (
            '                order = envelope["message"]\n'
            '                if order["type"] == "explode":\n'
            "                    continue\n"
        ),
    ),
}


def with_fault(*replaced: str) -> str:
    program = PIKA.replace("BEAT_S = 5", "BEAT_S = 1")
    for old, new in zip(replaced[::2], replaced[1::2], strict=True):
        assert program.count(old) >= 1, old
        program = program.replace(old, new)
    return program


@pytest.mark.parametrize(
    ("rule", "replaced"),
    [
        *FAULTS.items(),
        *(pytest.param(*each, marks=pytest.mark.proof) for each in MORE_FAULTS.items()),
    ],
)
async def test_a_compute_that_breaks_one_rule_is_told_this_rule_alone(
    tmp_path: Path, rule: str, replaced: tuple[str, ...]
) -> None:
    assert rule in ALL
    program = tmp_path / "broken.py"
    program.write_text(with_fault(*replaced))
    async with stage(tmp_path) as here:
        command = here.command(program, "shed-1", "shed-2")
        if rule in NEED_RESTART:
            outcome = await here.check("shed-1", "shed-2", restart=here.restarting(command), beat_s=LIMIT_S)
        else:
            outcome = await here.check_from_its_start(command, "shed-1", "shed-2", beat_s=LIMIT_S)

        found = broken(outcome)
        assert [*found] == [rule], found
        assert found[rule].expected
        assert found[rule].came


async def test_a_compute_that_dies_is_told_once_and_the_other_rules_are_not_tried(tmp_path: Path) -> None:
    program = tmp_path / "dies.py"
    program.write_text(
        with_fault(
            "    kept = attempts.get(key)\n",
            '    kept = attempts.get(key)\n    if order["type"] == "stop":\n        sys.exit(1)\n',
        )
    )
    async with stage(tmp_path) as here:
        outcome = await here.check_from_its_start(here.command(program, "shed-1"), "shed-1")

    assert [*broken(outcome)] == ["stop and start"]
    assert len([each for each in outcome.findings if "answers nothing" in each.reason]) > 10
    assert len(outcome.left) == 1


async def test_it_refuses_a_cell_that_has_a_conductor_and_one_that_the_broker_does_not_have(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as here:
        async with connected(here.under_test.broker(user_of("conductor", CELL))) as connection:
            await connection.open_consuming(f"conductor.{CELL}.work", 1)
            told = r"1 conductors consume conductor\.c1\.work: cell 'c1' is in use"
            with pytest.raises(CannotCheck, match=told):
                await here.check("shed-1")

        environment = {"PATH": os.environ["PATH"]}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "laboratory.check", "--bus", here.under_test.url()),
            *("--cell", "nowhere", "--host", "shed-1"),
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
        _, err = await process.communicate()
        assert process.returncode == 2
        assert "moor broker declare --cells nowhere" in err.decode()


async def test_it_refuses_a_cell_whose_conductor_has_orders_and_leaves_them(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        golden = json.loads((Path(__file__).parents[2] / "golden" / "remove.v1.json").read_text())
        body = json.dumps({"message": golden["message"]}).encode()
        async with connected(here.under_test.broker()) as connection:
            order = Parcel(f"moor.cell.{CELL}", f"remove.{CELL}", body, mandatory=True)
            await publish(connection, order)
            with pytest.raises(CannotCheck, match=r"orders of the API level \(remove\)"):
                await here.check("shed-1")

            await until_depth(connection, f"conductor.{CELL}.work", 1)


async def test_its_lines_and_its_json_tell_the_same(tmp_path: Path) -> None:
    async with stage(tmp_path) as here:
        restart = here.restarting(here.command(EXAMPLES / "own_compute_pika.py", "shed-1"))
        arguments = (
            *("--bus", here.under_test.url(user_of("conductor", CELL))),
            *("--watch-bus", here.under_test.url(user_of("operator"))),
            *("--cell", CELL, "--host", "shed-1", "--limit", "20", "--restart", restart),
        )
        lines = await printed(*arguments)
        found = json.loads(await printed(*arguments, "--json"))

    assert f"{len(ALL) - 1} of {len(ALL) - 1} rules hold; 1 not tried" in lines
    assert lines.count("✓") == len(ALL) - 1
    assert "- move " in lines
    assert {each["rule"] for each in found["findings"] if each.get("holds")} == ALL - {"move"}
    assert found["left"] == []


async def printed(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "laboratory.check", *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()
