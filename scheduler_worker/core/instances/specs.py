"""The spec of a request as its rows keep it: for explanations of past decisions, and for plans to drain a host."""

import msgspec

from scheduler_worker.core.requests import InstanceSpec

encoded = msgspec.msgpack.Encoder().encode
_spec = msgspec.msgpack.Decoder(InstanceSpec).decode


def decoded(spec: bytes) -> InstanceSpec | None:
    """None if the row keeps none, or one of another release that cannot be read."""
    try:
        return _spec(spec) if spec else None
    except msgspec.DecodeError:
        return None
