"""A compound host fails by its traits if it has room, but none with these traits. Without any room, `Capacity` removes it."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.compounds import Needs, needs_of
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Filter
from scheduler_worker.core.requests import InstanceSpec


class Traits(Filter):
    name = "traits"

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if not spec.required and not spec.forbidden:
            return hosts.everyone()
        passed = hosts.with_all(spec.required)
        if spec.forbidden:
            passed = passed & ~hosts.with_any(spec.forbidden)
        if not hosts.some_are_compound:
            return passed
        has_room = hosts.decided(hosts.everyone(), Needs(spec.amounts))
        return hosts.decided(passed, needs_of(spec)) | ~has_room

    def reason(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        if hosts.is_compound(at):
            return self._reason_of_compound(hosts, spec, at)
        lacks = [trait for trait in spec.required if not hosts.with_any((trait,))[at]]
        has = [trait for trait in spec.forbidden if hosts.with_any((trait,))[at]]
        said = [f"lacks {', '.join(lacks)}"] * bool(lacks) + [f"has forbidden {', '.join(has)}"] * bool(has)
        return "; ".join(said)

    def _reason_of_compound(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        traits = {trait for provider in hosts.providers_for(at) for trait in provider.state.traits}
        lacks = [trait for trait in spec.required if trait not in traits]
        if lacks:
            return f"lacks {', '.join(lacks)}"
        asked = (*spec.required, *(f"not {trait}" for trait in spec.forbidden))
        return f"has room, but not at providers that together are {', '.join(asked)}"
