"""Why the filters refuse each host."""

import numpy as np

from engine.choosing.hosts import Draft, Hosts, OneHost
from engine.choosing.plugins import Plugins
from engine.picture.picture import Picture
from engine.refusals import Miss
from engine.requests import InstanceSpec


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
