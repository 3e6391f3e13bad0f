"""Build requests, checked: each is valid, or rejected with the field, the value and the reason."""

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec
from msgspec import Struct, structs

from bus.messages.build import BuildInstance, BuildRejected, RequestId
from bus.workers.handling import Received
from placement_worker.core.vocabulary import Vocabulary
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.instances.specs import encoded
from scheduler_worker.core.requests import (
    Alternative,
    InstanceSpec,
    read_alternatives,
    read_request,
    with_specs,
)
from scheduler_worker.core.requests.device_profiles import PROFILE
from scheduler_worker.requests.answering import rejection, too_old

SPECS_MAX = 1000

_NO_REQUEST = RequestId(UUID(int=0))

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
    kept: bytes = b""
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
        kept = encoded(spec, self.ask.message, alternatives)
        return structs.replace(self, spec=spec, alternatives=alternatives, kept=kept)


def names_stored(build: BuildInstance) -> bool:
    """Does the request name flavors, an image or a device profile that are stored (stored_names.py)?"""
    if build.flavor_names or build.image_name:
        return True
    flavor = build.flavor
    is_in_flavor = flavor is not None and PROFILE in flavor.extra_specs
    return is_in_flavor or any(PROFILE in each.extra_specs for each in build.alternatives)


class _Understood(NamedTuple):
    spec: InstanceSpec
    digest: bytes
    kept: bytes
    alternatives: tuple[Alternative, ...]


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
        # Requests of many groups have one spec, but for the group.
        understood = self._understood(build, _canonical(structs.replace(build, request_id=None, group=None)))
        if isinstance(understood, BuildRejected):
            return understood
        if ask.sent_at is not None and now - ask.sent_at > self._horizon:
            return too_old(ask, self._horizon)
        assert build.request_id is not None, "a request without an id is rejected"
        spec, digest, kept, alternatives = understood
        if build.group is not None:
            digest = hashlib.sha256(digest + _canonical(build.group)).digest()
        return ValidRequest(ask, build.request_id, spec, digest, kept, alternatives=alternatives)

    def spec_of(self, build: BuildInstance) -> InstanceSpec | BuildRejected:
        """The needs of a request's flavor. Nothing is built for it, and it may lack its id."""
        return self._spec_of(structs.replace(build, request_id=build.request_id or _NO_REQUEST))

    def alternatives_of(self, build: BuildInstance) -> tuple[Alternative, ...] | BuildRejected:
        """All flavors of a request for which nothing is built, with their needs. It may lack its id."""
        build = structs.replace(build, request_id=build.request_id or _NO_REQUEST)
        return read_alternatives(build, self._spec_of)

    def _spec_of(self, build: BuildInstance) -> InstanceSpec | BuildRejected:
        spec = read_request(build, self._vocabulary, self._scopes, self._image_keys)
        if isinstance(spec, BuildRejected):
            return spec
        return self._not_read(spec, build) or spec

    def _understood(self, build: BuildInstance, content: bytes) -> _Understood | BuildRejected:
        if build.request_id is not None and (known := self._known.get(content)) is not None:
            return known
        alternatives = read_alternatives(build, self._spec_of)
        if isinstance(alternatives, BuildRejected):
            return alternatives
        spec = alternatives[0].spec
        if len(alternatives) == 1:
            # The flavor as it was read: one that leaves a page size open has it decided.
            build = structs.replace(build, flavor=alternatives[0].flavor)
            alternatives = ()
        if len(self._known) >= SPECS_MAX:
            self._known.clear()
        understood = self._known[content] = _Understood(
            spec, hashlib.sha256(content).digest(), encoded(spec, build, alternatives), alternatives
        )
        return understood

    def _not_read(self, spec: InstanceSpec, build: BuildInstance) -> BuildRejected | None:
        """The rejection of a request whose value no active filter reads, or whose filter does not understand the value;
        otherwise None.
        """
        for field, ids, read in (
            ("different_host", build.different_host, "different_hosts"),
            ("same_host", build.same_host, "same_hosts"),
        ):
            if ids and not self.plugins.reads(read):
                reason = f"the filter {field} is not among the `filters` of this scheduler"
                return rejection(field, ", ".join(map(str, ids)), reason, build.request_id)
        asked = (("flavor.extra_specs", spec.extra_specs), ("image_properties", spec.image_properties))
        for field, pairs in asked:
            for key, value in pairs:
                if reason := self.plugins.problem_with(key, value):
                    return rejection(f"{field}.{key}", value, reason, build.request_id)
        return None
