"""A compound host whose search was cut may have the amounts, but it is not known."""

import numpy as np

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.needs import needs_of
from scheduler_worker.core.choosing.plugins import Filter
from scheduler_worker.core.requests import InstanceSpec


class Searched(Filter):
    name = "search"
    reads = ("amounts", "required", "forbidden", "preferred", "groups", "isolates", "same_subtree")

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if hosts.before_search or not hosts.some_are_searched(spec):
            return hosts.everyone()
        cut = hosts.cut(needs_of(spec))
        return hosts.everyone() if cut is None else np.equal(cut, 0)

    def reason(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        cut = hosts.cut(needs_of(spec))
        assert cut is not None, "some host was searched"
        return f"its search was cut after {cut[at]} steps: it may have what is asked, to find out would cost too much"
