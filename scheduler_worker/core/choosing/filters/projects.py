"""Keeps a bare-metal node that is bound to projects for these projects. A node whose resource class the request does
not ask for passes here; the filter `BareMetal` removes it.
"""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class ProjectsFilter(Filter):
    name = "projects"
    reads = ("classes", "project")
    woken_by = (Change.FACTS, Change.PROVIDERS)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if not hosts.some_are_nodes:
            return hosts.everyone()
        return hosts.open_to(spec.project) | ~hosts.stocked_with_any(spec.classes)

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        projects = host.projects
        bound = f"project {projects[0]}" if len(projects) == 1 else f"projects {' and '.join(projects)}"
        return f"this node belongs to {bound}, the request to {spec.project or 'none'}"
