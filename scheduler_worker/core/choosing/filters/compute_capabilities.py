"""The host has the capabilities that extra specs `capabilities:KEY` ask for, compared by Nova's operators (demands.py)."""

from collections.abc import Iterator

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.demands import Demand, demand_of, is_met
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.picture.columns import HostProfile
from scheduler_worker.core.requests.spec import InstanceSpec

SCOPE = "capabilities"


class ComputeCapabilities(Filter):
    name = "capabilities"
    reads = ("extra_specs",)
    woken_by = (Change.FACTS,)
    scopes = (SCOPE,)

    def problem_with(self, key: str, value: str) -> str:
        if not key.partition(":")[2]:
            return "it names no capability: capabilities:NAME"
        demand = demand_of(value)
        return demand if isinstance(demand, str) else ""

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        asked = list(_asked(spec)) if spec.extra_specs else ()
        if not asked:
            return hosts.everyone()

        def judge(profile: HostProfile) -> bool:
            told = capabilities_of(profile)
            return all(key in told and is_met(demand, told[key]) for key, demand in asked)

        return hosts.judged(judge)

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        told = capabilities_of(host.profile)
        said = []
        for key, demand in _asked(spec):
            if key not in told:
                said.append(f"tells no capability {key}")
            elif not is_met(demand, told[key]):
                said.append(
                    f"{key} asked {' '.join((demand.operator, *demand.words)).strip()!r}, is {told[key]!r}"
                )
        return "; ".join(said)


def capabilities_of(profile: HostProfile) -> dict[str, str]:
    """The host's own capabilities, and its hypervisor."""
    return {
        "hypervisor_type": profile.hypervisor_type,
        "hypervisor_version": str(profile.hypervisor_version),
        **dict(profile.capabilities),
    }


def _asked(spec: InstanceSpec) -> Iterator[tuple[str, Demand]]:
    for key, value in spec.extra_specs:
        scope, _, name = key.partition(":")
        if scope == SCOPE:
            demand = demand_of(value)
            assert isinstance(demand, Demand), "the reader of requests has refused any other value"
            yield name, demand
