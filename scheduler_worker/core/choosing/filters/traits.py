"""A compound host fails this filter if it has room for the amounts, but only on providers without these traits. If it
has no room at all, the filter `Capacity` removes it.
"""

import numpy as np

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts, Searching
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.needs import Needs, needs_of
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.choosing.refusals.group_reasons import traits_at, why_no_traits
from scheduler_worker.core.requests import InstanceSpec


class TraitsFilter(Filter):
    name = "traits"
    reads = Needs._fields
    woken_by = (Change.PROVIDERS, Change.USAGE)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if not spec.required and not spec.forbidden and not spec.groups:
            return hosts.everyone()
        if hosts.search is Searching.LATER:
            asked = tuple([trait for group in spec.groups for trait in group.required])
            # Amounts do not count here.
            return hosts.kept(
                (self.name, spec.required, spec.forbidden, asked),
                lambda every: _may_pass(every, spec, asked),
                is_steady=True,
            )
        passed = _passing_by_columns(hosts, spec)
        if not hosts.some_are_searched(spec):
            return passed
        needs = needs_of(spec)
        if hosts.search is Searching.TOGETHER:
            return hosts.decided(passed, needs)
        has_room = hosts.decided(hosts.everyone(), needs, by_room_alone=True)
        return hosts.decided(passed, needs) | ~has_room

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        if spec.groups:
            return why_no_traits(host, needs_of(spec))
        if host.is_compound:
            return self._reason_of_compound(host, spec)
        lacks = [trait for trait in spec.required if not host.has_trait(trait)]
        has = [trait for trait in spec.forbidden if host.has_trait(trait)]
        said = [f"lacks {', '.join(lacks)}"] * bool(lacks) + [f"has forbidden {', '.join(has)}"] * bool(has)
        return "; ".join(said)

    def _reason_of_compound(self, host: OneHost, spec: InstanceSpec) -> str:
        known = traits_at(host)
        if lacks := [trait for trait in spec.required if trait not in known]:
            return f"lacks {', '.join(lacks)}"
        asked = (*spec.required, *(f"not {trait}" for trait in spec.forbidden))
        return f"has room, but not at providers that together are {', '.join(asked)}"


def _passing_by_columns(hosts: Hosts, spec: InstanceSpec) -> Flags:
    passed = hosts.with_all(spec.required)
    return passed & ~hosts.with_any(spec.forbidden) if spec.forbidden else passed


def _may_pass(hosts: Hosts, spec: InstanceSpec, asked: tuple[str, ...]) -> Flags:
    """The hosts that may have the traits. A host that must still be searched passes if its providers have them all."""
    searched = hosts.are_searched(needs_of(spec))
    return np.where(searched, hosts.may_have_all((*spec.required, *asked)), _passing_by_columns(hosts, spec))
