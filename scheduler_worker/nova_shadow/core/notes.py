"""A note of shadow mode: one instance of one request of Nova, with what this scheduler chose for it, and what Nova did."""

from datetime import datetime
from typing import Literal, get_args

from msgspec import Struct

from bus.messages.build import InstanceId

ShadowVerdict = Literal[
    # Both chose this host.
    "same",
    # Two hosts that are equal by our weighers.
    "as_good",
    # Nova's host is worse by our weighers, or better. Ours is the best unless host_subset_size is more than 1.
    "nova_worse",
    "nova_better",
    # Our filters refuse the host that Nova chose.
    "filtered",
    # Only one of both found a host, or neither did.
    "only_nova",
    "only_ours",
    "neither",
    "not_compared",
]
VERDICTS: tuple[ShadowVerdict, ...] = get_args(ShadowVerdict)


class WeighersCompared(Struct, frozen=True, omit_defaults=True):
    """What one weigher says of both hosts. `ahead` is by how much it puts our host before Nova's: 1 is the weigher's whole range."""

    weigher: str
    ours: float
    nova: float
    ahead: float


class ShadowNote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`ours` and `nova` are hosts; empty if there was none. `refusal` says why we had none, and `nova_reason` what is known of why
    Nova had none. `filter` is the filter of ours that refuses Nova's host. `reason` explains the verdict in words.
    """

    at: datetime
    request_id: str
    instance: InstanceId
    verdict: ShadowVerdict
    reason: str = ""
    project: str = ""
    flavor: str = ""
    # How many instances the request asked for.
    instances: int = 1
    is_forced: bool = False
    ours: str = ""
    alternates: tuple[str, ...] = ()
    hosts: int = 0
    qualified: int = 0
    refusal: str = ""
    nova: str = ""
    nova_reason: str = ""
    # After how long Nova's choice was seen.
    nova_after_s: float | None = None
    filter: str = ""
    weighed: tuple[WeighersCompared, ...] = ()
