"""A project's own aggregates are those whose metadata `filter_tenant_id` names the project. All its requests get hosts
of these only.
"""

from typing import Any

from bus.messages.aggregates import Aggregate
from scheduler_worker.core.aggregates.metadata import tenants_of
from scheduler_worker.core.choosing.filters.by_aggregates import ByAggregates
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.requests.spec import InstanceSpec


class OwnAggregates(ByAggregates):
    """With `required`, a project without own aggregates gets no host; otherwise it may get any host."""

    reads = ("project",)

    def __init__(self, *, required: bool = False) -> None:
        self.name = "required own aggregates" if required else "own aggregates"
        self._required = required

    def asked(self, hosts: Hosts, spec: InstanceSpec) -> str | None:
        if self._required:
            return spec.project
        has_own = hosts.metadata.name_tenants and any(
            spec.project in tenants_of(each) for each in hosts.metadata.all()
        )
        return spec.project if has_own else None

    def why_not(self, aggregates: tuple[Aggregate, ...], asked: Any) -> str:
        if any(asked in tenants_of(each) for each in aggregates):
            return ""
        return f"is in no aggregate of {f'project {asked}' if asked else 'the project'}"
