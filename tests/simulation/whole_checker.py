"""Follows requests that are built whole or not at all: all their first claims are granted by one commit, and all their
instances are placed by one commit.
"""

from collections.abc import Collection, Iterable

from engine.flavors import InstanceId, RequestId, instance_id_of
from engine.inventories import ConsumerId
from scheduler_worker.core.instances.rows import FIRST_ATTEMPT, PLACED, InstanceRow
from tests.simulation.findings import Findings
from tests.simulation.host_history import short_id
from tests.simulation.plan import Plan

WHOLE = "all or nothing"
PROMISE = "all or none of a request is placed"


class WholeChecker:
    def __init__(self, findings: Findings, plan: Plan) -> None:
        self._findings = findings
        self._instances = {
            RequestId(boot.id): {instance_id_of(RequestId(boot.id), index) for index in range(boot.count)}
            for boot in plan.boots
            if boot.all_or_nothing
        }
        self._request_of = {id_: request for request, ids in self._instances.items() for id_ in ids}

    def claimed(self, granted: Collection[tuple[ConsumerId, int]]) -> None:
        """Take in the claims and swaps that one commit of placement granted."""
        first = {consumer for consumer, attempt in granted if attempt == FIRST_ATTEMPT}
        if self._check(first, "are claimed by one commit"):
            self._findings.count(WHOLE, "all claimed")

    def written(self, rows: Iterable[InstanceRow]) -> None:
        """Take in the rows that one commit of a scheduler decided for the first time."""
        rows = [row for row in rows if row.id in self._request_of]
        if self._check({row.id for row in rows if row.told.state == PLACED}, "are placed by one commit"):
            self._findings.count(WHOLE, "all placed")
        if any("would fit" in row.told.reason for row in rows):
            self._findings.count(WHOLE, "none placed")

    def _check(self, ids: Collection[InstanceId], what: str) -> bool:
        requests = {self._request_of[id_] for id_ in ids if id_ in self._request_of}
        for request in sorted(requests, key=str):
            all_of_it = self._instances[request]
            if missing := all_of_it - set(ids):
                self._findings.breaks(
                    PROMISE,
                    f"{len(all_of_it) - len(missing)} of {len(all_of_it)} instances of {short_id(request)} {what}",
                )
        return bool(requests)
