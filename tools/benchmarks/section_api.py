"""Placement over HTTP, ours and OpenStack's: candidates and claims, in clouds of several sizes.

During the searches a client claims 200 times a second, so that no cached answer is right. The cost of these claims is
measured separately first, subtracted from the cost of the searches, and shown beside it.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial

from msgspec import Struct, structs

from tools.benchmarks.books import postgres_server
from tools.benchmarks.clouds import Cloud, hosts_alone, trees
from tools.benchmarks.compared_servers import MeasuredServer, openstacks, ours
from tools.benchmarks.comparison_targets import OURS, THEIRS
from tools.benchmarks.cpu import OneProcess, Spender
from tools.benchmarks.http_load import CLAIMERS, WRITES_A_S, Claiming, Claims, Searching, writing
from tools.benchmarks.measuring import GENERATOR, Details, Effort, Result, Run, Work, measured

CANDIDATES, CLAIMS, PACED = "candidates over HTTP", "claims over HTTP", "claims over HTTP, paced"
UNLIMITED = "none"
HOT = 10
LIMITS = (50, 1_000, None)
PACED_CLAIMS = {OURS: 600, THEIRS: 100}


class Plan(Struct, frozen=True):
    """What to measure in one cloud: how many operations make a run of some seconds, and the number of clients."""

    cloud: Cloud
    limits: tuple[int | None, ...]
    searches: Mapping[str, int]
    # The number of providers that all claims share; None means all providers.
    claimed_on: tuple[int | None, ...]
    claims: Mapping[str, int]


def plans() -> tuple[Plan, ...]:
    return (
        Plan(hosts_alone(1_000), LIMITS, {OURS: 300, THEIRS: 24}, (None, HOT), {OURS: 2_000, THEIRS: 200}),
        Plan(hosts_alone(10_000), LIMITS, {OURS: 100, THEIRS: 6}, (None,), {OURS: 2_000, THEIRS: 60}),
        Plan(trees(1_000), (1_000,), {OURS: 100, THEIRS: 6}, (None,), {OURS: 1_000, THEIRS: 60}),
    )


def plan_without_servers() -> Plan:
    return Plan(hosts_alone(100), (None,), {OURS: 300}, (HOT,), {OURS: 2_000})


async def api_section(effort: Effort) -> list[Result]:
    if not effort.servers:
        return await _measure(ours, plan_without_servers(), effort)
    results: list[Result] = []
    async with postgres_server() as postgres:
        for plan in plans():
            pair = [
                await _measure(partial(serving, postgres=postgres), plan, effort)
                for serving in (openstacks, ours)
            ]
            results += [result for both in zip(*pair, strict=True) for result in both]
    return results


async def _measure(
    contender: Callable[[Cloud], AbstractAsyncContextManager[MeasuredServer]], plan: Plan, effort: Effort
) -> list[Result]:
    async with contender(plan.cloud) as serving:
        claims = Claims(serving.server, plan.cloud)
        claimed = [await _claims(serving, plan, claims, meeting_on, effort) for meeting_on in plan.claimed_on]
        claimed.append(await _claims(serving, plan, claims, plan.claimed_on[0], effort, clients=1))
        async with writing(serving.server, claims, plan.cloud.claimable):
            claimed.append(await _paced(serving, plan, claims, effort))
            # The cost of a claim depends on how many share a transaction: never subtract more than it may have been.
            cheapest = min(claimed, key=lambda result: result.total_us)
            searched = [
                without_claims(await _searches(serving, plan, claims, limit, effort), cheapest)
                for limit in plan.limits
            ]
        await claims.check()
    return claimed + searched


async def _claims(
    serving: MeasuredServer,
    plan: Plan,
    claims: Claims,
    meeting_on: int | None,
    effort: Effort,
    *,
    clients: int = CLAIMERS,
) -> Result:
    providers = plan.cloud.claimable[:meeting_on]
    where = "spread over all" if meeting_on is None else f"on {meeting_on} of them"
    return await measured(
        CLAIMS,
        {"cloud": plan.cloud.name, "hosts": where, "clients": clients, "server": serving.name},
        _spenders(serving),
        operations=effort.operations(plan.claims[serving.name], 1),
        effort=effort,
        prepare=Claiming(serving.server, claims, providers, clients).prepare,
        settle=serving.settle,
    )


async def _paced(serving: MeasuredServer, plan: Plan, claims: Claims, effort: Effort) -> Result:
    """The cost of the concurrent claims without any search."""

    def prepare(count: int) -> Work:
        async def work() -> Details:
            await claims.until_more(count)
            return {}

        return work

    return await measured(
        PACED,
        {"cloud": plan.cloud.name, "a second, at most": WRITES_A_S, "server": serving.name},
        _spenders(serving),
        operations=effort.operations(PACED_CLAIMS[serving.name], 1),
        effort=effort,
        prepare=prepare,
    )


async def _searches(
    serving: MeasuredServer, plan: Plan, claims: Claims, limit: int | None, effort: Effort
) -> Result:
    return await measured(
        CANDIDATES,
        {
            "cloud": plan.cloud.name,
            "limit": UNLIMITED if limit is None else f"{limit:,}",
            "server": serving.name,
        },
        _spenders(serving),
        operations=effort.operations(plan.searches[serving.name], 1),
        effort=effort,
        prepare=Searching(serving.server, plan.cloud, limit, claims).prepare,
    )


def without_claims(searches: Result, claims: Result) -> Result:
    """Subtract the cost of the concurrent claims, and report their number."""
    return structs.replace(searches, runs=tuple(_without_claims(run, claims) for run in searches.runs))


def _without_claims(run: Run, claims: Result) -> Run:
    claims_each = run.details["claims beside"] / run.operations
    theirs_us = {kind: claims.us(kind) * claims_each for kind in run.cpu_us if kind != GENERATOR}
    return structs.replace(
        run,
        cpu_us={kind: max(0.0, us - theirs_us.get(kind, 0.0)) for kind, us in run.cpu_us.items()},
        details={
            **run.details,
            "claims beside µs": sum(theirs_us.values()),
            "claims beside a second": run.details["claims beside"] / run.wall_s,
        },
    )


def _spenders(serving: MeasuredServer) -> Mapping[str, Spender]:
    return {GENERATOR: OneProcess(os.getpid()), **serving.spenders}
