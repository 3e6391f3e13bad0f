"""Keeps bare-metal nodes for the requests that want one. An instance takes a node as a whole, so only a request that
asks for the node's resource class gets it.

A request with ports, which only nodes read, gets a node or nothing; and so does one with an image or a config drive whose
flavor asks for classes of nodes alone.
"""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class BareMetalFilter(Filter):
    name = "bare metal"
    reads = ("classes", "is_for_nodes")
    woken_by = (Change.FACTS, Change.PROVIDERS)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if spec.is_for_nodes:
            return hosts.nodes & hosts.stocked_with_any(spec.classes)
        return (
            ~hosts.nodes | hosts.stocked_with_any(spec.classes) if hosts.some_are_nodes else hosts.everyone()
        )

    def reason(self, host: OneHost, _spec: InstanceSpec) -> str:
        if not host.is_node:
            return "is no bare-metal node, and the request needs one: for its image, config drive or ports, or as it prefers a class of nodes"
        if not host.classes:
            return "is a bare-metal node without a resource class"
        return f"is a bare-metal node, only for requests that ask for {' or '.join(host.classes)}"
