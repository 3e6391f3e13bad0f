"""The outcomes of a search for a host. The row of an instance after each of them: placing.py."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from bus.message import ProviderId
from bus.messages.build import Flavor, FlavorPassedOver, NoValidHost
from bus.messages.cell import Choice


class Holds(Struct, frozen=True):
    """The outcome of a search that found a host: placement has granted the share of `choice` for this attempt. `is_new`
    is false if the instance held the share already, by an earlier claim.
    """

    cell: str
    attempt: int
    choice: Choice
    alternates: tuple[Choice, ...] = ()
    is_new: bool = False
    # How many hosts there were, and how many of them qualified; 0 for a claim of an earlier try.
    hosts: int = 0
    qualified: int = 0
    # The flavors of alternates that are for another flavor than the choice, by host.
    other_flavors: Mapping[ProviderId, Flavor] = {}


class SearchRefused(Struct, frozen=True):
    """The outcome of a search that ends without a host, except `NoValidHost`: that says that no host qualifies.

    A request that wants all of its instances placed or none is refused if some of them find no host. Then
    `no_valid_host` is the funnel of one of these. With `may_pass`, the same search may find a host later. `over_quota`: the
    project's quota forbids it.
    """

    reason: str
    no_valid_host: NoValidHost | None = None
    may_pass: bool = False
    over_quota: bool = False


class EndedElsewhere(Struct, frozen=True):
    """The outcome of a search whose instance another worker has ended: placement refuses the claim as released."""

    reason: str = "its claim had been released before it was granted"


Outcome = Holds | NoValidHost | SearchRefused | EndedElsewhere


class FlavorFound(NamedTuple):
    """The flavor that an instance gets of several that its request accepts; `spec` is what it needs, encoded. If there is no
    host, it is the last one that was tried.
    """

    flavor: Flavor
    spec: bytes
    passed_over: tuple[FlavorPassedOver, ...]


def in_words(refusal: NoValidHost) -> str:
    steps = [f"{step.removed} removed by {step.step} ({step.example})" for step in refusal.steps]
    return f"no host among {refusal.hosts}" + (f": {', '.join(steps)}" if steps else "")
