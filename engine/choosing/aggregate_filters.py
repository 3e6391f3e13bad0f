"""The filters that decide by a host's aggregates and their metadata."""

from abc import abstractmethod
from collections.abc import Hashable
from typing import Any

from engine.candidates.columns import Flags
from engine.choosing.hosts import Hosts, OneHost
from engine.choosing.plugins import Filter, HostChange
from engine.hosts import FLAVORS, ONLY_OF_AGGREGATES, TRAIT, Aggregate, items_of, tenants_of
from engine.requests.grammar import Demand, demand_of, is_met
from engine.requests.spec import InstanceSpec


class ByAggregates(Filter):
    """A host's aggregates are judged once for each set of aggregates that hosts are in, and for each thing asked."""

    woken_by = (HostChange.AGGREGATES, HostChange.PROVIDERS)

    @abstractmethod
    def asked(self, hosts: Hosts, spec: InstanceSpec) -> Hashable:
        """The demands of the spec on metadata; None if every host passes."""

    @abstractmethod
    def why_not(self, aggregates: tuple[Aggregate, ...], asked: Any) -> str:
        """Why a host in these aggregates does not pass; empty if it does."""

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        asked = self.asked(hosts, spec)
        if asked is None:
            return hosts.everyone()
        passed: Flags = hosts.by_aggregates(self._allows, asked)
        return passed

    def _allows(self, aggregates: tuple[Aggregate, ...], asked: Any) -> bool:
        return not self.why_not(aggregates, asked)

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        return self.why_not(host.aggregates, self.asked(host.hosts, spec))


def named(aggregates: tuple[Aggregate, ...]) -> str:
    return f"{'aggregates' if len(aggregates) > 1 else 'aggregate'} {', '.join(each.name for each in aggregates)}"


# A project's own aggregates are those whose metadata `filter_tenant_id` names the project. All its requests get hosts
# of these only.


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


# The metadata of the host's aggregates meets each `aggregate_instance_extra_specs:KEY` of the flavor, compared by Nova's
# operators (engine/requests/grammar.py). With several aggregates that have the key, one of their values is enough.


SCOPE = "aggregate_instance_extra_specs"


class AggregateExtraSpecs(ByAggregates):
    name = "metadata of aggregates"
    reads = ("extra_specs",)
    scopes = (SCOPE,)

    def problem_with(self, key: str, value: str) -> str:
        if not key.partition(":")[2]:
            return f"it names no key of metadata: {SCOPE}:KEY"
        demand = demand_of(value)
        return demand if isinstance(demand, str) else ""

    def asked(self, hosts: Hosts, spec: InstanceSpec) -> tuple[tuple[str, str], ...] | None:  # noqa: ARG002 - a key that no aggregate has fails everywhere
        if not spec.extra_specs:
            return None
        scoped = (spec_ for spec_ in spec.extra_specs if spec_[0].startswith(f"{SCOPE}:"))
        return tuple((key.partition(":")[2], value) for key, value in scoped) or None

    def why_not(self, aggregates: tuple[Aggregate, ...], asked: Any) -> str:
        for key, value in asked:
            demand = demand_of(value)
            assert isinstance(demand, Demand), "the reader of requests has refused any other value"
            has = [each.metadata[key] for each in aggregates if key in each.metadata]
            if not any(is_met(demand, each) for each in has):
                return f"{key} asked {value!r}, its aggregates have {' and '.join(map(repr, has)) or 'none'}"
        return ""


class AggregateFlavors(ByAggregates):
    """Aggregates for some flavors only: metadata `instance_type` lists their names."""

    name = "flavors of aggregates"
    reads = ("flavor",)

    def asked(self, hosts: Hosts, spec: InstanceSpec) -> str | None:
        return spec.flavor if FLAVORS in hosts.metadata.keys else None

    def why_not(self, aggregates: tuple[Aggregate, ...], asked: Any) -> str:
        bound = tuple(each for each in aggregates if FLAVORS in each.metadata)
        flavors = frozenset().union(*(items_of(each.metadata[FLAVORS]) for each in bound))
        if not bound or asked in flavors:
            return ""
        return f"{named(bound)} is for flavors {', '.join(sorted(flavors))}, asked {asked or 'one without a name'}"


# Aggregates for some images only: metadata under an image property's name lists the values that may run there.


# The properties that aggregates may isolate by. An image without such a property may run anywhere.
ISOLATING = (
    *ONLY_OF_AGGREGATES,
    *("hw_architecture", "architecture", "img_hv_type", "hypervisor_type", "hw_vm_mode", "vm_mode"),
)


class AggregateImageProperties(ByAggregates):
    name = "image properties of aggregates"
    reads = ("image_properties",)
    image_keys = ISOLATING

    def asked(self, hosts: Hosts, spec: InstanceSpec) -> tuple[tuple[str, str], ...] | None:
        if not spec.image_properties:
            return None
        keys = hosts.metadata.keys
        return (
            tuple(each for each in spec.image_properties if each[0] in keys and each[0] in ISOLATING) or None
        )

    def why_not(self, aggregates: tuple[Aggregate, ...], asked: Any) -> str:
        for key, value in asked:
            allowed = frozenset().union(
                *(items_of(each.metadata[key]) for each in aggregates if key in each.metadata)
            )
            if allowed and value not in allowed:
                return f"its aggregates are for images with {key} {', '.join(sorted(allowed))}, this one has {value}"
        return ""


class AggregateTenants(ByAggregates):
    """Aggregates for some projects only: metadata `filter_tenant_id`, or several keys that begin so, list the projects."""

    name = "tenants of aggregates"
    reads = ("project",)

    def asked(self, hosts: Hosts, spec: InstanceSpec) -> str | None:
        return spec.project if hosts.metadata.name_tenants else None

    def why_not(self, aggregates: tuple[Aggregate, ...], asked: Any) -> str:
        bound = tuple(each for each in aggregates if tenants_of(each))
        tenants = frozenset().union(*map(tenants_of, bound))
        if not tenants or asked in tenants:
            return ""
        return (
            f"{named(bound)} is for {', '.join(sorted(tenants))}, the request is of {asked or 'no project'}"
        )


class AggregateTraits(ByAggregates):
    """Keeps hosts of certain aggregates for requests that require a trait: those with the metadata `trait:NAME` =
    `required`.
    """

    name = "traits of aggregates"
    reads = ("required",)

    def asked(self, hosts: Hosts, spec: InstanceSpec) -> tuple[str, ...] | None:
        isolating = hosts.metadata.isolating_traits
        return tuple(trait for trait in spec.required if trait in isolating) if isolating else None

    def why_not(self, aggregates: tuple[Aggregate, ...], asked: Any) -> str:
        for each in aggregates:
            traits = {key.removeprefix(TRAIT) for key in each.metadata if key.startswith(TRAIT)}
            if missing := sorted(traits.difference(asked)):
                return f"{named((each,))} is for requests that require {', '.join(missing)}"
        return ""


class AskedAggregates(Filter):
    """The host is in the aggregates that the request names, and in none that it forbids. The aggregates of its root count."""

    name = "asked aggregates"
    reads = ("member_of", "forbidden_aggregates")
    woken_by = (HostChange.PROVIDERS,)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        passed = hosts.everyone()
        for any_of in spec.member_of:
            passed = passed & hosts.in_any_aggregate(any_of)
        if spec.forbidden_aggregates:
            passed = passed & ~hosts.in_any_aggregate(spec.forbidden_aggregates)
        return passed

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        lacks = [any_of for any_of in spec.member_of if not host.is_in(any_of)]
        said = [f"is not in aggregate {' or '.join(map(str, any_of))}" for any_of in lacks]
        said += [
            f"is in forbidden aggregate {aggregate}"
            for aggregate in spec.forbidden_aggregates
            if host.is_in((aggregate,))
        ]
        return "; ".join(said)


class ProjectsFilter(Filter):
    """Keeps a bare-metal node that is bound to projects for these projects. A node whose resource class the request does
    not ask for passes here; the filter `BareMetal` removes it.
    """

    name = "projects"
    reads = ("classes", "project")
    woken_by = (HostChange.FACTS, HostChange.PROVIDERS)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if not hosts.some_are_nodes:
            return hosts.everyone()
        return hosts.open_to(spec.project) | ~hosts.stocked_with_any(spec.classes)

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        projects = host.projects
        bound = f"project {projects[0]}" if len(projects) == 1 else f"projects {' and '.join(projects)}"
        return f"this node belongs to {bound}, the request to {spec.project or 'none'}"
