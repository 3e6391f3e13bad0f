"""The spec of a request as its rows keep it: for explanations of past decisions, for plans to drain a host, and for moves."""

import msgspec
from msgspec import Struct, structs

from bus.messages.build import BuildInstance, Flavor
from scheduler_worker.core.requests import Alternative, InstanceSpec


class _Kept(Struct, frozen=True, array_like=True):
    """A spec as a row stores it, with the build request and the flavor that it was read from. `alternatives` are all flavors
    of a request that accepts several; the spec is that of the first one.

    A resize reads the request again, with another flavor. So the request is stored without all that a resize does not
    read from it: ids, names, the deadline and so on. It is None if nothing else was asked.
    """

    spec: InstanceSpec
    build: BuildInstance | None
    flavor: Flavor
    alternatives: tuple[Alternative, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_kept = msgspec.msgpack.Decoder(_Kept).decode


_NOTHING_ELSE = BuildInstance()
_NO_FLAVOR = Flavor()


def encoded(
    spec: InstanceSpec, build: BuildInstance = _NOTHING_ELSE, alternatives: tuple[Alternative, ...] = ()
) -> bytes:
    """The spec, its request and its flavor as bytes for a row. Two requests with equal needs and equal flavors give equal
    bytes, since everything that names a request is left out.
    """
    # A flavor that prefers a class of nodes is not itself the first one.
    flavor = alternatives[0].flavor if alternatives else build.flavor or _NO_FLAVOR
    build = structs.replace(
        build,
        request_id=None,
        flavor=None,
        count=1,
        instance_ids=(),
        name="",
        project="",
        user="",
        group=None,
        hosts=(),
        ignore_hosts=(),
        different_host=(),
        same_host=(),
        deadline_s=None,
        image=None,
        config_drive="",
        ports=(),
        all_or_nothing=False,
        wait=None,
        alternatives=(),
    )
    return _encode(_Kept(spec, None if build == _NOTHING_ELSE else build, flavor, alternatives))


def decoded(kept: bytes) -> InstanceSpec | None:
    """The spec that `encoded` made these bytes of. None if there are none, or if they are of another release and cannot
    be read.
    """
    found = _read(kept)
    return None if found is None else found.spec


def alternatives_in(kept: bytes) -> tuple[Alternative, ...]:
    """All flavors that the request accepts, if these bytes have several; otherwise none."""
    found = _read(kept)
    return () if found is None else found.alternatives


def specs_in(kept: bytes) -> tuple[InstanceSpec, ...]:
    """The spec for each flavor that the request accepts, the best first; none if they cannot be read."""
    found = _read(kept)
    if found is None:
        return ()
    return tuple([each.spec for each in found.alternatives]) or (found.spec,)


def request_of(kept: bytes) -> BuildInstance | None:
    found = _read(kept)
    return None if found is None else found.build or _NOTHING_ELSE


def image_name_of(kept: bytes) -> str:
    """The name of the stored image that the request named; empty if it named none."""
    request = request_of(kept)
    return "" if request is None else request.image_name


def flavor_of(kept: bytes) -> Flavor | None:
    """The flavor with these needs; None if there are none, or if they are of another release and cannot be read."""
    found = _read(kept)
    return None if found is None else found.flavor


def _read(kept: bytes) -> _Kept | None:
    try:
        return _kept(kept) if kept else None
    except msgspec.DecodeError:
        return None
