"""Finds which hosts pass all filters, for one spec of a batch after another.

Specs of one batch often differ in their amounts alone. A filter whose answer does not depend on amounts or usage says
the same about each of them. So it is asked once for all specs that are equal in the fields which such filters read.
"""

from collections.abc import Sequence

import numpy as np

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.draft import Draft
from scheduler_worker.core.choosing.hosts.host_columns import Hosts, Searching
from scheduler_worker.core.choosing.plugins import Change, Filter, Plugins
from scheduler_worker.core.requests import InstanceSpec


class Qualifying:
    """Finds the hosts of one draft that pass the filters for a spec. Between two specs, choices may be written into the
    draft.
    """

    def __init__(self, draft: Draft, plugins: Plugins) -> None:
        self._draft = draft
        self._steady = tuple([one for one in plugins.filters if _is_steady(one)])
        self._others = tuple([one for one in plugins.filters if not _is_steady(one)])
        self._fields = tuple({field: None for one in self._steady for field in one.reads})
        self._passed: dict[tuple[object, ...], Flags] = {}

    def of(self, spec: InstanceSpec, *, search: Searching = Searching.TOGETHER) -> Flags:
        """A flag for each host that passes all filters; callers must not write into the array."""
        hosts = Hosts(self._draft, search=search)
        asked = tuple([getattr(spec, field) for field in self._fields])
        passed = self._passed.get(asked)
        if passed is None:
            passed = self._passed[asked] = passing(hosts, spec, self._steady, hosts.present)
        return passing(hosts, spec, self._others, passed)


def _is_steady(one: Filter) -> bool:
    """Does the filter say the same all through a batch about all specs that differ in their amounts alone?"""
    return not one.is_per_instance and Change.USAGE not in one.woken_by and "amounts" not in one.reads


def passing(hosts: Hosts, spec: InstanceSpec, filters: Sequence[Filter], among: Flags) -> Flags:
    """The hosts in `among` that pass all of these filters."""
    everyone, own = hosts.everyone(), None
    for one in filters:
        passed = one.passes(hosts, spec)
        # Most filters have nothing to say about most requests.
        if passed is not everyone:
            among = np.logical_and(among, passed, out=own)
            own = among
    return among
