"""Build requests, checked: each is valid, or rejected with the field, the value and the reason; and the search for the host of one
instance that a request asks for.
"""

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct, structs

from bus.message import Message
from bus.messages.build import BuildInstance, BuildRejected, ClaimRefused
from bus.messages.placement import ClaimResources, SwapClaim
from bus.topology import CELL0
from bus.workers.handlers import Answer, Received, Said, Tell
from engine.choosing.choosing import Chosen
from engine.choosing.plugins import Plugins
from engine.choosing.verdicts import (
    FlavorFound,
    Holds,
    NewChoice,
    NextTry,
    OtherHost,
    Outcome,
    SameHostAgain,
    SearchRefused,
)
from engine.flavors import FlavorPassedOver, InstanceId, InstanceRequest, JoinedGroup, RequestId
from engine.hosts import host_in_cell
from engine.inventories import Choice, GroupId, ProviderId, ResourceAmount, ServerGroup, Share, Vocabulary
from engine.refusals import ClaimVerdict, NoValidHost, Shortfall
from engine.requests import (
    Alternative,
    InstanceSpec,
    RequestProblem,
    read_alternatives,
    read_request,
    with_specs,
)
from engine.requests.spec import PROFILE
from kit.metrics import Labels, Readings, limited
from scheduler_worker.core.instances.history import encoded
from scheduler_worker.core.instances.rows import DELETED, FIRST_ATTEMPT, InstanceRow
from scheduler_worker.metrics import NO_VALID_HOST
from scheduler_worker.store_sql import GroupQuery, KnownGroup, SchedulerStore

# Asks placement, and waits for all answers.
AskAll = Callable[[Sequence[Message]], Awaitable[Sequence[Message]]]

# Rejections of requests, with the reason. The client gets a rejection as a reply, and an event says the same, for clients
# that use a plain AMQP library and wait for no reply.


# The field that a request is refused for when it comes too late.
SENT_AT = "sent_at"


def rejection(field: str, value: object, reason: str, request: RequestId | None = None) -> BuildRejected:
    return BuildRejected(request_id=request, field=field, value=str(value), reason=reason)


def too_old(ask: Received[BuildInstance], horizon: timedelta) -> BuildRejected:
    return rejection(
        SENT_AT,
        ask.sent_at,
        f"too old: a request that was sent more than {horizon.total_seconds():.0f} s ago may have been built and deleted since, "
        "and its rows may be forgotten",
        ask.message.request_id,
    )


def other_content(ask: Received[BuildInstance]) -> BuildRejected:
    request = ask.message.request_id
    return rejection(
        "request_id",
        request,
        "duplicate id: a request with this id and other content was taken before",
        request,
    )


def taken_instances(request: RequestId, instances: Iterable[InstanceId]) -> BuildRejected:
    named = ", ".join(map(str, instances))
    return rejection("instance_ids", named, "duplicate id: they belong to another request", request)


def rejected(ask: Received[Message], why: BuildRejected) -> tuple[Said, ...]:
    if isinstance(ask.message, BuildInstance):
        why = structs.replace(why, project=ask.message.project)
    return (Answer(ask, why), Tell(why, ask))


SPECS_MAX = 1000

_canonical = msgspec.json.Encoder(order="deterministic").encode


class ValidRequest(Struct, frozen=True, eq=False):
    """A build request that passed all checks, with what it asks for. `digest` is made of its whole content without its
    id, so two requests that use one id can be told apart.

    `alternatives` are all flavors that it accepts, each with its spec; the first spec is `spec`. They are empty for a
    request that accepts one flavor only.
    """

    ask: Received[BuildInstance]
    id: RequestId
    spec: InstanceSpec
    digest: bytes
    # The specs as its rows keep them; empty: they keep none.
    spec_bytes: bytes = b""
    # Why it cannot join the group that it names.
    unjoined: str = ""
    alternatives: tuple[Alternative, ...] = ()

    @property
    def names_others(self) -> bool:
        """Does it name instances or a server group, which must be looked up?"""
        build = self.ask.message
        return bool(build.group or build.different_host or build.same_host)

    def with_specs(self, change: Callable[[InstanceSpec], InstanceSpec]) -> "ValidRequest":
        """The request with this change of the spec of each flavor."""
        spec, alternatives = change(self.spec), with_specs(self.alternatives, change)
        spec_bytes = encoded(spec, self.ask.message, alternatives)
        return structs.replace(self, spec=spec, alternatives=alternatives, spec_bytes=spec_bytes)


def names_stored(build: BuildInstance) -> bool:
    """Does the request name flavors, an image or a device profile that are stored (catalog.py)?"""
    if build.flavor_names or build.image_name:
        return True
    flavor = build.flavor
    is_in_flavor = flavor is not None and PROFILE in flavor.extra_specs
    return is_in_flavor or any(PROFILE in each.extra_specs for each in build.alternatives)


ReadT = TypeVar("ReadT")


# The spec, the digest, the specs as rows keep them, and the alternatives.
_Understood = tuple[InstanceSpec, bytes, bytes, tuple[Alternative, ...]]


class RequestReader:
    def __init__(self, vocabulary: Vocabulary, horizon: timedelta, plugins: Plugins) -> None:
        self._vocabulary = vocabulary
        self._horizon = horizon
        self.plugins = plugins
        self._scopes, self._image_keys = plugins.scopes, plugins.image_keys
        # By content: most requests have the content of an earlier one.
        self._known: dict[bytes, _Understood] = {}

    def read(self, ask: Received[BuildInstance], now: datetime) -> ValidRequest | BuildRejected:
        build = ask.message
        if build.request_id is None:
            reason = "there is none: the client chooses a uuid, and repeats it with the request"
            return rejection("request_id", "", reason)
        # Requests of many groups have one spec, but for the group.
        understood = self._understood(build, _canonical(structs.replace(build, request_id=None, group=None)))
        if isinstance(understood, BuildRejected):
            return understood
        if ask.sent_at is not None and now - ask.sent_at > self._horizon:
            return too_old(ask, self._horizon)
        spec, digest, spec_bytes, alternatives = understood
        if build.group is not None:
            digest = hashlib.sha256(digest + _canonical(build.group)).digest()
        return ValidRequest(ask, build.request_id, spec, digest, spec_bytes, alternatives=alternatives)

    def spec_of(self, build: BuildInstance) -> InstanceSpec | BuildRejected:
        """The needs of a request's flavor. Nothing is built for it, and it may lack its id."""
        return _or_rejection(self._spec_of(build), build)

    def alternatives_of(self, build: BuildInstance) -> tuple[Alternative, ...] | BuildRejected:
        """All flavors of a request for which nothing is built, with their needs. It may lack its id."""
        return _or_rejection(read_alternatives(build, self._spec_of), build)

    def _spec_of(self, request: InstanceRequest) -> InstanceSpec | RequestProblem:
        spec = read_request(request, self._vocabulary, self._scopes, self._image_keys)
        if isinstance(spec, RequestProblem):
            return spec
        return self._not_read(spec, request) or spec

    def _understood(self, build: BuildInstance, content: bytes) -> _Understood | BuildRejected:
        if (known := self._known.get(content)) is not None:
            return known
        alternatives = self.alternatives_of(build)
        if isinstance(alternatives, BuildRejected):
            return alternatives
        spec = alternatives[0].spec
        if len(alternatives) == 1:
            # The flavor as it was read: one that leaves a page size open has it decided.
            build = structs.replace(build, flavor=alternatives[0].flavor)
            alternatives = ()
        if len(self._known) >= SPECS_MAX:
            self._known.clear()
        spec_bytes = encoded(spec, build, alternatives)
        understood = self._known[content] = spec, hashlib.sha256(content).digest(), spec_bytes, alternatives
        return understood

    def _not_read(self, spec: InstanceSpec, request: InstanceRequest) -> RequestProblem | None:
        """The problem of a request whose value no active filter reads, or whose filter does not understand the value;
        otherwise None.
        """
        for field, ids, read in (
            ("different_host", request.different_host, "different_hosts"),
            ("same_host", request.same_host, "same_hosts"),
        ):
            if ids and not self.plugins.reads(read):
                reason = f"the filter {field} is not among the `filters` of this scheduler"
                return RequestProblem(field, ", ".join(map(str, ids)), reason)
        asked = (("flavor.extra_specs", spec.extra_specs), ("image_properties", spec.image_properties))
        for field, pairs in asked:
            for key, value in pairs:
                if reason := self.plugins.problem_with(key, value):
                    return RequestProblem(f"{field}.{key}", value, reason)
        return None


def _or_rejection(read: ReadT | RequestProblem, build: BuildInstance) -> ReadT | BuildRejected:
    """What was read of this request; or its rejection, if the engine refuses it."""
    if isinstance(read, RequestProblem):
        return rejection(read.field, read.value, read.reason, build.request_id)
    return read


# The instances and the server groups that build requests name: they are read from the store, once, when the request is
# read.
#
# Of instances, to be apart from them or together with them, the hosts count. An instance that gets its host later, or moves,
# is not followed: server groups are for that.
#
# If there is no such server group, the request is accepted all the same, and its instances end in error. It is not rejected,
# since a request may be delivered once more after its group was deleted, and must then get the same answer.


async def with_neighbours(
    store: SchedulerStore, requests: Sequence[ValidRequest]
) -> tuple[list[ValidRequest], list[tuple[ValidRequest, BuildRejected]]]:
    """The requests with the names of these hosts in their specs; and those that name an instance which their project does not
    have, with the reason.
    """
    builds = [request.ask.message for request in requests]
    named = {each for build in builds for each in (*build.different_host, *build.same_host)}
    if not named:
        return list(requests), []
    rows = await store.rows_of(sorted(named))
    known: list[ValidRequest] = []
    unknown: list[tuple[ValidRequest, BuildRejected]] = []
    for request in requests:
        why = next(_problems_of(request.ask.message, rows), None)
        if why is None:
            known.append(_with_hosts(request, rows))
        else:
            unknown.append((request, why))
    return known, unknown


def _problems_of(build: BuildInstance, rows: Mapping[InstanceId, InstanceRow]) -> Iterator[BuildRejected]:
    for field, ids in (("different_host", build.different_host), ("same_host", build.same_host)):
        for number, id_ in enumerate(ids):
            row = rows.get(id_)
            if row is None or (build.project and row.told.project != build.project):
                whose = f" of project {build.project}" if build.project else ""
                yield rejection(
                    f"{field}[{number}]", id_, f"no instance{whose} has this id", build.request_id
                )


def _with_hosts(request: ValidRequest, rows: Mapping[InstanceId, InstanceRow]) -> ValidRequest:
    build = request.ask.message
    beside = _hosts_of(build.same_host, rows)
    apart = _hosts_of(build.different_host, rows)
    together = beside if beside or not build.same_host else None
    return request.with_specs(lambda spec: structs.replace(spec, different_hosts=apart, same_hosts=together))


def _hosts_of(ids: Sequence[InstanceId], rows: Mapping[InstanceId, InstanceRow]) -> tuple[str, ...]:
    told = [rows[id_].told for id_ in ids]
    there = [each for each in told if each.host and each.state != DELETED]
    # With their cells: a host of another cell may have the same name.
    return tuple(sorted({host_in_cell(each.cell, each.host).lower() for each in there}))


# Server groups


async def joined_group(store: SchedulerStore, build: BuildInstance, named: JoinedGroup) -> ServerGroup | str:
    """The group that a request names; or why the request cannot join it."""
    found = await store.groups(GroupQuery(ids=(named.id,)))
    return _joined(build, named, found[0] if found else None)


async def with_groups(store: SchedulerStore, requests: Sequence[ValidRequest]) -> list[ValidRequest]:
    """The requests, each with the group that it names, or with the reason why it cannot join it."""
    ids = {group.id for each in requests if (group := each.ask.message.group) is not None}
    if not ids:
        return list(requests)
    known = {each.definition.id: each for each in await store.groups(GroupQuery(ids=tuple(sorted(ids))))}
    return [_with_group(each, known) for each in requests]


def _with_group(request: ValidRequest, known: dict[GroupId, KnownGroup]) -> ValidRequest:
    build = request.ask.message
    if build.group is None:
        return request
    joined = _joined(build, build.group, known.get(build.group.id))
    if isinstance(joined, str):
        return structs.replace(request, unjoined=joined)
    return request.with_specs(lambda spec: structs.replace(spec, server_group=joined))


def _joined(build: BuildInstance, named: JoinedGroup, group: KnownGroup | None) -> ServerGroup | str:
    if group is None or group.project not in ("", build.project):
        return f"group.id is {named.id}: there is no such server group, or it is another project's: create it first"
    definition = group.definition
    if named.policy not in (None, definition.policy):
        return f"group.policy is {named.policy!r}: the group's is {definition.policy!r}"
    if named.max_per_host not in (None, definition.max_per_host):
        return f"group.max_per_host is {named.max_per_host}: the group's is {definition.max_per_host}"
    return definition


# Which filter removed the last host of a request to build or to move that found none: for the metrics.


NO_HOST_AT_ALL = "(none)"


class LastFilters:
    def __init__(self, filters: Sequence[str] = ()) -> None:
        """`filters` are those that may remove hosts: Prometheus sees no growth of a counter that was not there before."""
        self._counts = Counter(dict.fromkeys((*filters, NO_HOST_AT_ALL), 0))

    @property
    def readings(self) -> Readings:
        shown = limited([*self._counts])
        by_filter = Counter[Labels]()
        for name, count in self._counts.items():
            by_filter[(shown[name],)] += count
        return (NO_VALID_HOST.numbers(by_filter),)

    def no_host(self, found: NoValidHost) -> None:
        removing = [step.step for step in found.steps if step.removed]
        self._counts[removing[-1] if removing else NO_HOST_AT_ALL] += 1


# The search for the host of one instance: what it needs, which host is chosen, which hosts refused, and how the search ended.
#
# A request may accept several flavors. The search begins with the best one, and takes the next one when no host is found
# for it.
#
# Only the claimer changes a search; a builder reads its `outcome` and `refusals`, and the flavor that was found.


# The id of no provider: a claim on it is never granted, and its answer tells which share is held already.
_NOWHERE = ProviderId(UUID(int=0))
NOTHING = Share(host=_NOWHERE, amounts=(ResourceAmount(provider=_NOWHERE, resource="VCPU", amount=1),))


class Search:
    # By which attempt it claims.
    attempt = FIRST_ATTEMPT

    def __init__(
        self,
        instance: InstanceId,
        issued_at: datetime,
        build: BuildInstance,
        spec: InstanceSpec,
        alternatives: Sequence[Alternative] = (),
        *,
        trace: str = "",
    ) -> None:
        """`alternatives` are all flavors that the request accepts, the best first; none if it accepts one only."""
        self.instance = instance
        self.trace = trace
        # The moment of acceptance, which goes with each claim: so a repeated claim is the same claim.
        self.issued_at = issued_at
        # The request and the needs with the present flavor.
        self.build = build
        self.spec = spec
        self.alternatives = alternatives
        # The better flavors for which there was no host.
        self.passed_over: list[FlavorPassedOver] = []
        self.chosen: Chosen | None = None
        self.outcome: Outcome | None = None
        self.refusals: list[ClaimRefused] = []
        # The one host that is tried again, named with its cell, since only its shape had moved, and how many times it was.
        self.insisted = ""
        self._insisted_times = 0
        # What placement said is free on the chosen host, when it refused the ways that were tried there.
        self.shortfalls: list[Shortfall] = []
        self._ignored: list[str] = []
        self._claims = 0
        if alternatives:
            self.begin_again()

    @property
    def is_searching(self) -> bool:
        return self.outcome is None

    @property
    def key(self) -> tuple[InstanceId, int]:
        return self.instance, self.attempt

    @property
    def elsewhere(self) -> InstanceSpec:
        """The spec of the instance, without the hosts that this search has passed over."""
        if not self._ignored:
            return self.spec
        return structs.replace(self.spec, ignore_hosts=(*self.spec.ignore_hosts, *self._ignored))

    @property
    def wanted(self) -> InstanceSpec:
        """The spec for the next choice: only the host that the search insists on, if there is one; otherwise
        `elsewhere`.
        """
        if self.insisted:
            return structs.replace(self.spec, hosts=(self.insisted,))
        return self.elsewhere

    # Flavors

    @property
    def found(self) -> FlavorFound | None:
        """The present flavor, if the request accepts several."""
        if not self.alternatives:
            return None
        flavor = self.alternatives[len(self.passed_over)].flavor
        return FlavorFound(flavor, encoded(self.spec, self.build), tuple(self.passed_over))

    @property
    def may_fall_back(self) -> bool:
        """Does the request accept a further flavor?"""
        return len(self.passed_over) + 1 < len(self.alternatives)

    @property
    def worse_flavors(self) -> Sequence[Alternative]:
        """The flavors after the present one."""
        return self.alternatives[len(self.passed_over) + 1 :]

    def fall_back(self, why: NoValidHost | str) -> None:
        """Search a host for the next flavor, since there is none for the present one."""
        name = self.alternatives[len(self.passed_over)].name
        if isinstance(why, NoValidHost):
            passed = FlavorPassedOver(flavor=name, reason="no valid host", no_valid_host=why)
        else:
            passed = FlavorPassedOver(flavor=name, reason=why)
        self._take_flavor([*self.passed_over, passed])

    def begin_again(self) -> None:
        """Search a host for the best flavor that the request accepts."""
        if self.alternatives:
            self._take_flavor([])

    def take_flavor_of(self, amounts: Mapping[str, int], traits: Collection[str]) -> None:
        """Take the flavor that asks for these amounts, for an instance that holds them already. If flavors differ in their
        traits alone, the host's traits decide.
        """
        able = [number for number, each in enumerate(self.alternatives) if dict(each.spec.amounts) == amounts]
        numbers = [number for number in able if _allows(self.alternatives[number].spec, traits)] or able
        if numbers and len(self.passed_over) not in numbers:
            better = self.alternatives[len(self.passed_over) : numbers[0]]
            reason = "the instance holds the share of another flavor already"
            unasked = [FlavorPassedOver(flavor=each.name, reason=reason) for each in better]
            self._take_flavor([*self.passed_over, *unasked][: numbers[0]])

    def _take_flavor(self, passed_over: list[FlavorPassedOver]) -> None:
        """Go on with the flavor that follows these ones."""
        taken = self.alternatives[len(passed_over)]
        self.passed_over = passed_over
        self.build = structs.replace(self.build, flavor=taken.flavor)
        self.spec = taken.spec
        self.chosen = None
        self.insisted, self._insisted_times = "", 0
        self._ignored.clear()
        self.shortfalls.clear()

    # Claims

    def claims_again_after(self, verdict: ClaimVerdict) -> bool:  # noqa: ARG002 - our own requests never do
        """Does this verdict let the search claim by another attempt, or settle it? Then nothing else follows from the verdict."""
        return False

    def order(self) -> ClaimResources | SwapClaim:
        """The next message that asks placement for the chosen host."""
        return self.claim()

    def claim(self) -> ClaimResources:
        """The next message that asks placement to claim the chosen host."""
        assert self.chosen is not None, "a host is chosen before it is claimed"
        self._claims += 1
        return ClaimResources(
            cell=self.chosen.cell,
            consumer=self.instance,
            attempt=self.attempt,
            issued_at=self.issued_at,
            share=self.chosen.choice.share,
            project=self.build.project,
            user=self.build.user,
            group=self.spec.server_group,
        )

    def probe(self) -> ClaimResources:
        """A claim that is never granted: its answer tells which share the instance holds already."""
        return ClaimResources(
            cell=CELL0,
            consumer=self.instance,
            attempt=self.attempt,
            issued_at=self.issued_at,
            share=NOTHING,
            project=self.build.project,
        )

    def granted(self, *, is_new: bool = True) -> None:
        """Placement has granted the claim of the chosen host, now or, if it is not new, at an earlier try."""
        chosen = self.chosen
        assert chosen is not None, "a host is chosen before it is claimed"
        self.outcome = Holds(
            *(chosen.cell, chosen.choice, chosen.alternates, chosen.hosts, chosen.qualified),
            attempt=self.attempt,
            is_new=is_new,
        )

    def try_other_way(self, way: Choice, by: OtherHost, *, claims_max: int) -> None:
        """Choose the same host again, with other amounts from its providers, after placement refused the first way for
        lack of room.
        """
        assert self.chosen is not None, "a claim was refused for the chosen host"
        self.refusals.append(ClaimRefused(host=way.name, reason=by.reason))
        self.chosen = structs.replace(self.chosen, choice=way)
        self._give_up_after(claims_max, f"{way.name}: {by.reason}")

    def refused(self, by: NextTry, *, shape_tries_max: int, claims_max: int) -> None:
        """Note a refused claim, and go on: with the same host, with the next alternate, or with a new choice; or give
        up.
        """
        assert self.chosen is not None, "a claim was refused for the chosen host"
        host, why = self.chosen.choice.name, by.reason
        named = host_in_cell(self.chosen.cell, host).lower()
        self.refusals.append(ClaimRefused(host=host, reason=why))
        if isinstance(by, SameHostAgain) and self._insisted_times + 1 < shape_tries_max:
            self.insisted = named
            self._insisted_times += 1
            self.chosen = None
        else:
            times = f" {self._insisted_times + 1} times" if isinstance(by, SameHostAgain) else ""
            why = f"{host}: {why}{times}"
            others = () if isinstance(by, NewChoice) else self.chosen.alternates
            self.pass_over(named)
            self.chosen = _on_alternate(self.chosen, others[0], others[1:]) if others else None
        self._give_up_after(claims_max, why)

    def _give_up_after(self, claims_max: int, why: str) -> None:
        # Each flavor may be claimed so many times.
        if self._claims >= claims_max * (len(self.passed_over) + 1):
            reason = f"{self._claims} claims were refused, and no more are tried; the last: {why}"
            if self.may_fall_back:
                self.fall_back(reason)
            else:
                self.outcome = SearchRefused(reason, may_pass=True)

    def pass_over(self, host: str) -> None:
        self._ignored.append(host)
        self.shortfalls.clear()
        self.insisted, self._insisted_times = "", 0

    def forget_refusals(self) -> None:
        """Allow hosts that were passed over to be chosen again, since the picture is up to date now."""
        self._ignored.clear()


def _allows(spec: InstanceSpec, traits: Collection[str]) -> bool:
    """May a host with these traits have an instance of the spec?"""
    return all(trait in traits for trait in spec.required) and not any(
        trait in traits for trait in spec.forbidden
    )


def _on_alternate(chosen: Chosen, alternate: Choice, others: Sequence[Choice]) -> Chosen:
    """The choice `chosen` with this alternate in the place of its host. Of the other alternates, those on the same host
    are left out: if the host fails to build, it would be tried a second time.
    """
    others = tuple([each for each in others if each.share.host != alternate.share.host])
    return structs.replace(chosen, choice=alternate, alternates=others)
