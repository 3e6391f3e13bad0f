"""What scheduling costs a real Nova: `python -m tools.real_nova.bench --with SCHEDULER+PLACEMENT [--hosts N] [--boots N]`.

Two cells of fake computes, fifty in a process. Some clients send the boots, and so many at a time wait for the scheduler. Told are the
CPU seconds of each part for a boot, the share that scheduling has in the databases and in Nova's broker, and how long
`select_destinations` took, from nova-conductor's call to the answer. Computes ask placement for each instance that they build, too:
they have a placement server of their own on the same books, whose CPU is told apart. With `--faults` the scheduler is killed under load, RabbitMQ
is restarted, and placement is away for a minute; then nothing may stay claimed for nobody.

nova-scheduler forgets what it chose before, and knows a host's use from its compute alone: under load it gives one host hundreds of
instances, which then build one after another. So it chooses by chance among equal hosts here, by an option of its own, and at the end
what is still being built is only counted.
"""

import argparse
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from statistics import quantiles
from typing import Any

import httpx
from msgspec import Struct, to_builtins

from laboratory.load.kernel import process_tree_cpu_s
from laboratory.private_servers import descendants
from tests.conformance.nova.cloud import Cloud, audited
from tests.conformance.nova.nova_api import NovaApi, NovaRefusedError
from tests.conformance.nova.nova_conf import API_LEVEL, database_of
from tests.conformance.nova.our_scheduler import our_scheduler, start_our_scheduler
from tests.conformance.nova.stack import NovaStack, Wanted, nova_stack
from tests.conformance.nova.stub_services import IMAGE
from tests.waiting import NeverTrueError

CLIENTS = 8
# So many boots at a time wait for the scheduler: the API would take them faster than nova-scheduler decides them.
UNDECIDED_MAX = 16
# A boot whose scheduler died is waited for so long.
UNDECIDED_WITHIN_S = 5.0
SETTLED_WITHIN_S = 3600.0
# Boots that wait behind each other on one host cost no scheduling any more: so long is waited for them, and they are counted.
BUILT_WITHIN_S = 60.0
# Nova's audits count what is decided and not written yet as claimed for nobody: so long all boots may take until then.
AUDITED_WITHIN_S = 300.0
AUDITS_TOLD = 400
# Those that do nothing but schedule; of the others a share counts.
SCHEDULING = ("scheduler", "placement", "placement database")
USERS = ("scheduler", "placement")
_RECEIVED = re.compile(r"messages_received_total\s*=>\s*(\d+)")


class Used(Struct, frozen=True):
    """CPU seconds of the groups of processes, of the database's users, and the messages that Nova's broker has received."""

    cpu_s: Mapping[str, float]
    users_s: Mapping[str, float]
    messages: int


class Figures(Struct, frozen=True):
    scheduler: str
    placement: str
    hosts: int
    boots: int
    active: int
    errors: int
    still_building: int
    seconds: float
    cpu_ms_a_boot: Mapping[str, float]
    # Of Nova's database and broker, what scheduling takes.
    shares_ms_a_boot: Mapping[str, float]
    scheduling_ms_a_boot: float
    answers: int
    p50_ms: float
    p99_ms: float
    hosts_used: int
    most_on_a_host: int
    # What Nova's own audits find at the end, with our scheduler.
    audits: str


def used(stack: NovaStack) -> Used:
    with stack.database.connection() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT USER, CPU_TIME FROM information_schema.USER_STATISTICS")
        users = {str(user): float(seconds) for user, seconds in cursor.fetchall()}
    counted = stack.rabbitmq.ctl("eval", "rabbit_global_counters:overview().")
    received = sum(int(each) for each in _RECEIVED.findall(counted))
    return Used(
        {group: sum(map(process_tree_cpu_s, roots)) for group, roots in stack.groups.items()}, users, received
    )


def load(stack: NovaStack, flavor: str, count: int, clients: int = CLIENTS) -> list[str]:
    """Send so many boots; returns the ids of the servers that Nova has accepted."""
    made: list[str] = []
    ours = threading.local()
    decided_before = len(took_ms(stack))

    def one(number: int) -> None:
        if not hasattr(ours, "api"):
            ours.api = NovaApi(stack.api.url)
        until_s = time.monotonic() + UNDECIDED_WITHIN_S
        while number - len(took_ms(stack, decided_before)) >= UNDECIDED_MAX and time.monotonic() < until_s:
            time.sleep(0.05)
        with suppress(NovaRefusedError, httpx.HTTPError):
            made.append(str(ours.api.boot(f"load-{number}", flavor, IMAGE)["server"]["id"]))

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(one, range(count)))
    return made


def until_settled(stack: NovaStack, count: int, within_s: float = SETTLED_WITHIN_S) -> Mapping[str, int]:
    """How many servers are active and in error, when none is being built any more."""
    until_s = time.monotonic() + within_s
    while True:
        counts = _states(stack)
        is_settled = not counts["BUILD"] and sum(counts.values()) >= count
        if is_settled or time.monotonic() > until_s:
            return counts
        time.sleep(1)


def _states(stack: NovaStack) -> Mapping[str, int]:
    """Read from the databases: to list hundreds of servers through the API would be a load of its own."""
    counts = {"ACTIVE": 0, "ERROR": 0, "BUILD": 0}
    with stack.database.connection() as connection, connection.cursor() as cursor:
        for level in (API_LEVEL, *stack.wanted.cells):
            instances = f"{database_of(level)}.instances"
            cursor.execute(f"SELECT UPPER(vm_state), COUNT(*) FROM {instances} WHERE deleted = 0 GROUP BY 1")  # noqa: S608 - a name of ours
            for state, number in cursor.fetchall():
                counts[state if state in counts else "BUILD"] += number
        cursor.execute("SELECT COUNT(*) FROM nova_api.build_requests")
        ((waiting,),) = cursor.fetchall()
        counts["BUILD"] += waiting
    return counts


def took_ms(stack: NovaStack, first: int = 0) -> list[float]:
    lines = stack.timings.read_text().splitlines()[first:] if stack.timings.exists() else []
    return [float(line.split()[1]) * 1000 for line in lines]


def measured(stack: NovaStack, boots: int) -> Figures:
    flavor = stack.api.flavor("bench", 1, 64, 1)
    load(stack, flavor, 2 * CLIENTS)
    until_settled(stack, 2 * CLIENTS)
    asked_before = len(took_ms(stack))
    before, began_s = used(stack), time.monotonic()
    accepted = load(stack, flavor, boots)
    counts = until_settled(stack, len(accepted) + 2 * CLIENTS, BUILT_WITHIN_S)
    after, seconds = used(stack), time.monotonic() - began_s
    times = took_ms(stack, asked_before)
    cpu = {group: (after.cpu_s[group] - before.cpu_s.get(group, 0)) * 1000 / boots for group in after.cpu_s}
    shares = _shares(before, after, len(times), cpu)
    servers = [host for each in stack.api.servers() if (host := each["OS-EXT-SRV-ATTR:host"])]
    by_host = {host: servers.count(host) for host in {*servers}}
    audits = ""
    if stack.wanted.scheduler == "ours":
        settled = until_settled(stack, len(accepted) + 2 * CLIENTS, AUDITED_WITHIN_S)
        audits = f"{settled}; {audited(Cloud(stack))}"[:AUDITS_TOLD]
    percentiles = quantiles(times, n=100) if len(times) > 1 else [0.0] * 99
    wanted = stack.wanted
    return Figures(
        scheduler=wanted.scheduler,
        placement=wanted.placement,
        hosts=sum(map(len, wanted.cells.values())),
        boots=boots,
        active=counts["ACTIVE"],
        errors=counts["ERROR"] + boots - len(accepted),
        still_building=counts["BUILD"],
        seconds=round(seconds, 1),
        cpu_ms_a_boot={group: round(each, 1) for group, each in cpu.items()},
        shares_ms_a_boot={name: round(each, 1) for name, each in shares.items()},
        scheduling_ms_a_boot=round(sum(cpu.get(group, 0) for group in SCHEDULING) + sum(shares.values()), 1),
        answers=len(times),
        p50_ms=round(percentiles[49], 1),
        p99_ms=round(percentiles[98], 1),
        hosts_used=len(by_host),
        most_on_a_host=max(by_host.values(), default=0),
        audits=audits,
    )


def _shares(before: Used, after: Used, answers: int, cpu: Mapping[str, float]) -> Mapping[str, float]:
    """Of the database by the time that its users' statements took; of the broker by messages: a call and its answer."""
    spent = {user: after.users_s[user] - before.users_s.get(user, 0) for user in after.users_s}
    total = sum(spent.values()) or 1.0
    messages = max(after.messages - before.messages, 1)
    return {
        **{f"database, {user}": cpu["nova database"] * spent.get(user, 0) / total for user in USERS},
        "nova broker": cpu["nova broker"] * min(1.0, 2 * answers / messages),
    }


def endured(stack: NovaStack, boots: int) -> Mapping[str, Any]:
    """Faults under load, one after another; then all that is left is deleted, and nothing may be in use."""
    flavor = stack.api.flavor("fault", 1, 64, 1)
    faults: Mapping[str, Callable[[], None]] = {
        "scheduler killed": lambda: _kill_scheduler(stack),
        "broker restarted": lambda: _restart_broker(stack),
        "placement away for a minute": lambda: _pause_placement(stack),
    }
    told: dict[str, Any] = {}
    for name, fault in faults.items():
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(load, stack, flavor, boots)
            time.sleep(4)
            fault()
            accepted = loading.result()
        counts = until_settled(stack, len(accepted), within_s=240)
        told[name] = {**counts, **_left(stack)}
        print(f"{name}: {told[name]}", flush=True)
    return told


def _left(stack: NovaStack) -> Mapping[str, Any]:
    """What Nova's audit finds, and what is in use when all servers are deleted."""
    cloud = Cloud(stack)
    audit = stack.manage("placement", "audit", "--verbose", allowed=(0, 3)).strip()
    for each in stack.api.servers():
        with suppress(NovaRefusedError):
            stack.api.ask("DELETE", f"/servers/{each['id']}")
    with suppress(NeverTrueError):
        stack.api.until_true(lambda: not stack.api.servers(), "all servers are gone", 180)
    with suppress(NeverTrueError):
        stack.api.until_true(lambda: not any(cloud.used().values()), "nothing is in use", 60)
    return {"audit": audit, "in use at the end": {name: each for name, each in cloud.used().items() if each}}


def _kill_scheduler(stack: NovaStack) -> None:
    for process in [*stack.groups["scheduler"]]:
        stack.kill(process)
    if stack.wanted.scheduler == "ours":
        start_our_scheduler(stack)
    else:
        stack.start_their_scheduler()
    stack.wait_for_scheduler()


def _restart_broker(stack: NovaStack) -> None:
    stack.rabbitmq.ctl("stop_app")
    stack.rabbitmq.ctl("start_app")


def _pause_placement(stack: NovaStack) -> None:
    roots = [*stack.groups["placement"], *stack.groups.get("computes placement", ())]
    everyone = {each for root in roots for each in (root, *descendants(root))}
    for process in everyone:
        os.kill(process, signal.SIGSTOP)
    time.sleep(60)
    for process in everyone:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.real_nova.bench")
    parser.add_argument("--with", dest="combination", default="theirs+theirs", metavar="SCHEDULER+PLACEMENT")
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--boots", type=int, default=1000)
    parser.add_argument(
        "--faults", type=int, default=0, metavar="BOOTS", help="so many boots with each fault, too"
    )
    options = parser.parse_args(arguments)
    scheduler, placement = options.combination.split("+")
    half = options.hosts // 2
    wanted = Wanted(
        placement=placement,
        scheduler=scheduler,
        cells={f"cell{cell}": tuple(f"c{cell}h{number}" for number in range(half)) for cell in (1, 2)},
        # Each compute's heartbeat costs the conductors work that has nothing to do with boots.
        report_s=60,
        down_s=300,
        notifies=scheduler == "ours",
        is_placement_apart=True,
        options={
            "filter_scheduler": {
                "track_instance_changes": "false",
                "shuffle_best_same_weighed_hosts": "true",
            },
            "DEFAULT": {"update_resources_interval": "600"},
        },
    )
    began_s = time.monotonic()
    with nova_stack(wanted, our_scheduler) as stack:
        print(
            f"{options.hosts} hosts started in {time.monotonic() - began_s:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        figures = measured(stack, options.boots)
        print(json.dumps(to_builtins(figures), indent=2), flush=True)
        if options.faults:
            print(json.dumps(endured(stack, options.faults), indent=2), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
