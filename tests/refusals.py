"""Why the filters refuse each host."""

import numpy as np

from bus.messages.build import Miss
from scheduler_worker.core.choosing.draft import Draft
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.core.requests import InstanceSpec


def why_not(picture: Picture, spec: InstanceSpec, plugins: Plugins) -> tuple[Miss, ...]:
    """Every host that does not qualify, with the first reason. Nothing is chosen or held."""
    hosts = Hosts(Draft(picture, plugins.way_judges))
    left = hosts.present.copy()
    misses: list[Miss] = []
    for one in plugins.filters:
        passed = one.passes(hosts, spec)
        misses += [
            Miss(host=host.name, reason=f"{one.name}: {one.reason(host, spec)}")
            for host in [OneHost(hosts, at) for at in np.flatnonzero(left & ~passed).tolist()]
        ]
        left &= passed
    return tuple(sorted(misses, key=lambda miss: miss.host))
