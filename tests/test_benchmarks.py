"""The benchmarks run, and fail when the measured work is wrong."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time

import msgspec
import pytest
from rich.console import Console
from sqlalchemy.engine import make_url

from bus.messages.placement import ClaimResources
from tests.hostile_requests import Hostile, get
from tests.placement_servers import PlacementServer
from tools.benchmarks.__main__ import SECTIONS, measure
from tools.benchmarks.books import SqliteBooks, WrongBooksError, asked, handled, handlers_on
from tools.benchmarks.cpu import OneProcess, ProcessTree
from tools.benchmarks.machine import this_machine
from tools.benchmarks.measuring import QUICK, Effort, Result, Run
from tools.benchmarks.messages import HOST_IDS, claims
from tools.benchmarks.report import as_json, budgets_of, show
from tools.benchmarks.section_beside import SECTION, asked_over_http, longest_waits
from tools.benchmarks.section_libvirt import guest_costs, libvirt_section

BURNT_S = 0.2
REAL = Effort(runs=1, scale=1.0, kinds_max=1, servers=True)
BURN = f"import time\nwhile time.process_time() < {BURNT_S}: pass"


@pytest.mark.timeout(300)
@pytest.mark.asyncio
async def test_a_quick_run_measures_every_section_and_finds_all_books_in_order() -> None:
    # A check that finds a wrong answer, or books that contradict themselves, raises.
    results = await measure(tuple(SECTIONS), QUICK)

    assert [(result.section, *map(str, result.what.values())) for result in results] == [
        ("bus, one way", "memory", "200"),
        ("bus, asked and answered", "memory", "200", "4"),
        ("claims", "sqlite", "1", "on one", "200"),
        ("claims over the bus", "memory", "sqlite", "1", "200"),
        ("hosts, chosen", "100 trees of 5", "different"),
        ("hosts, chosen", "100 trees of 5, pools", "rich"),
        ("hosts, chosen for one", "100 trees of 7", "rich"),
        ("hosts, chosen after a change", "100 trees of 7", "rich"),
        ("plans", "100 trees of 5", "fits nowhere"),
        ("plans", "100 trees of 5, pools", "rich"),
        ("claims over HTTP", "100 hosts", "on 10 of them", "8", "moorage"),
        ("claims over HTTP", "100 hosts", "on 10 of them", "1", "moorage"),
        ("claims over HTTP, paced", "100 hosts", "200", "moorage"),
        ("candidates over HTTP", "100 hosts", "none", "moorage"),
        ("waits beside hard questions", "sqlite", "HTTP", "GET /", "all of them at once"),
        ("waits beside hard questions", "sqlite", "HTTP", "claim", "all of them at once"),
        ("waits beside hard questions", "sqlite", "unix", "claim", "all of them at once"),
        ("claims, all or none", "sqlite", "100", "10"),
        ("events of nodes", "memory", "sqlite", "100"),
        ("a ring of daemons", "memory", "60", "4", "first sync"),
        ("a ring of daemons", "memory", "60", "4", "200 notifications"),
        ("a ring of daemons", "memory", "60", "4", "d1 killed"),
    ]
    for result in results:
        assert result.rate > 0, result
        assert all(run.operations >= 2 for run in result.runs), result
        assert all(result.us(kind) > 0 for kind in result.kinds), result
        assert all(run.ours > 0 for run in result.runs), result
    by_section = {result.section: result for result in results}
    assert by_section["claims over HTTP"].kinds == ("generator", "server")

    machine = this_machine()
    told = msgspec.json.decode(as_json(machine, results))
    assert [each["section"] for each in told["results"]] == [result.section for result in results]
    assert told["machine"]["processors"] == os.cpu_count()
    console = Console(record=True, width=200, quiet=True)
    show(console, machine, results)


@pytest.mark.asyncio
async def test_real_guests_are_measured_and_removed() -> None:
    # A guest that is not active, and one that is left, raises.
    (result,) = await libvirt_section(REAL)

    assert result.kinds == ("generator", "compute", "libvirtd", "guests", "broker")
    assert all(result.us(kind) > 0 for kind in result.kinds), result
    (line,) = guest_costs([result])
    assert line.startswith("real guests: 10 guests are active ")


@pytest.mark.asyncio
async def test_books_that_contradict_themselves_fail_a_benchmark() -> None:
    with pytest.raises(WrongBooksError, match="1 contradictions"):
        await _open_and_falsify()


@pytest.mark.asyncio
async def test_a_claim_that_is_refused_fails_a_benchmark() -> None:
    async with SqliteBooks().opened() as opened:
        handler = handlers_on(opened.store)[ClaimResources]
        batch = asked(claims(2, HOST_IDS))
        await handled(opened.store, handler, batch)

        # Each of them is held already.
        with pytest.raises(WrongBooksError, match="refused: ClaimAnswered"):
            await handled(opened.store, handler, batch)


def test_a_process_tree_counts_its_ended_children() -> None:
    here = ProcessTree(os.getpid())
    before_s = here.spent_s()

    subprocess.run((sys.executable, "-c", BURN), check=True)

    # The kernel reports the CPU time of ended children in ticks.
    assert here.spent_s() - before_s > BURNT_S - 0.02


def test_one_process_counts_its_ended_threads_and_not_its_children() -> None:
    here = OneProcess(os.getpid())
    before_s = here.spent_s()

    thread = threading.Thread(target=_spend, args=(BURNT_S,))
    thread.start()
    thread.join()
    after_thread_s = here.spent_s()
    subprocess.run((sys.executable, "-c", BURN), check=True)

    assert after_thread_s - before_s > BURNT_S
    assert here.spent_s() - after_thread_s < BURNT_S


def test_the_load_generator_is_shown_and_not_counted() -> None:
    run = Run(
        operations=10, wall_s=2, ours=0.5, others=0, cpu_us={"generator": 9, "placement": 3, "broker": 2}
    )
    result = Result("claims over the bus", {}, (run,))

    assert list(result.totals_us) == [5]
    assert result.python_us == 3
    assert result.rate == 5


def test_the_minimum_of_several_runs_is_compared_with_the_budget() -> None:
    runs = tuple(
        Run(operations=1, wall_s=1, ours=0.5, others=0.5, cpu_us={"python": python, "database": 90})
        for python in (55, 39, 41)
    )
    kept = Result("claims", {"store": "postgresql", "claims a batch": 50}, runs)
    exceeded = Result("claims", {"store": "postgresql", "claims a batch": 200}, runs[:1])

    assert [line.rpartition(" ")[2] for line in budgets_of([kept])] == ["kept", "kept"]
    assert [line.rpartition(" ")[2] for line in budgets_of([kept, exceeded])] == ["EXCEEDED", "kept"]


async def _open_and_falsify() -> None:
    async with SqliteBooks().opened() as opened:
        file = sqlite3.connect(make_url(opened.url).database or "")
        file.execute("UPDATE providers SET used = json_set(used, '$.\"1\"', 1) WHERE id = 1")
        file.commit()
        file.close()


def _spend(seconds: float) -> None:
    while time.thread_time() < seconds:
        pass


def waited(beside: str, *longest_ms: float) -> Result:
    runs = tuple(
        Run(1, 1.0, {"generator": 1.0}, ours=0.1, others=0.0, details={"longest wait ms": each})
        for each in longest_ms
    )
    return Result(SECTION, {"asked": "GET /", "beside": beside}, runs)


def test_the_longest_wait_of_the_best_run_is_compared_with_the_promise() -> None:
    (kept,) = longest_waits([waited("a", 900.0, 150.0), waited("b", 20.0)])
    (exceeded,) = longest_waits([waited("a", 900.0, 150.0), waited("b", 201.0)])

    assert kept.endswith("was 150 ms (GET /, a): kept")
    assert exceeded.endswith("was 201 ms (GET /, b): EXCEEDED")
    assert [*longest_waits([])] == []


@pytest.mark.asyncio
async def test_a_costly_question_with_an_unexpected_answer_fails_a_benchmark() -> None:
    async def no_such_thing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(no_such_thing, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        with pytest.raises(WrongBooksError, match="1 clients that ask costly questions have ended"):
            async with asked_over_http(PlacementServer(host, port, 0), (Hostile(get("/"), 200),)) as askers:
                await asyncio.wait([asyncio.ensure_future(each.wait()) for each in askers])
