"""The spec of a request as its rows keep it: for explanations of past decisions, for plans to drain a host, and for moves."""

import msgspec
from msgspec import Struct, structs

from bus.messages.build import BuildInstance
from scheduler_worker.core.requests import InstanceSpec


class _Kept(Struct, frozen=True, array_like=True):
    """`build` is the request but for its flavor: a resize brings another one. None: nothing else was asked."""

    spec: InstanceSpec
    build: BuildInstance | None


_encode = msgspec.msgpack.Encoder().encode
_kept = msgspec.msgpack.Decoder(_Kept).decode


_NOTHING_ELSE = BuildInstance()


def encoded(spec: InstanceSpec, build: BuildInstance = _NOTHING_ELSE) -> bytes:
    """Equal needs have equal codes: what names a request, or only this building of it, is left out."""
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
    )
    return _encode(_Kept(spec, None if build == _NOTHING_ELSE else build))


def decoded(kept: bytes) -> InstanceSpec | None:
    """None if the row keeps none, or one of another release that cannot be read."""
    found = _read(kept)
    return None if found is None else found.spec


def request_of(kept: bytes) -> BuildInstance | None:
    found = _read(kept)
    return None if found is None else found.build or _NOTHING_ELSE


def _read(kept: bytes) -> _Kept | None:
    try:
        return _kept(kept) if kept else None
    except msgspec.DecodeError:
        return None
