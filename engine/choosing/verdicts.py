"""The outcomes of a search for a host; and the next step after placement has not granted a claim: an outcome, the same host
again, or another host.

AlreadyClaimed            The instance has the host of the share that placement holds, even if another one was chosen.
ShapeMoved                The picture takes the new state, and the same host is tried again.
DoesNotFit                The next alternate; after the last, a new choice without these hosts.
GroupRefused              A new choice: the picture lacked members of the server group, so alternates may be as bad.
Superseded, TooOld        Another worker has ended the instance.
QuotaExceeded             The instance ends in error, or gets the next flavor that its request accepts. No other host would help.
NotAllowed                The instance ends in error; but if the host has moved to another cell, as DoesNotFit.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec import Struct

from engine.choosing.choosing import Chosen
from engine.flavors import Flavor, FlavorPassedOver
from engine.hosts import HostState
from engine.inventories import SHARE_CELL, Choice, ProviderId, Share
from engine.refusals import (
    AlreadyClaimed,
    ClaimVerdict,
    DoesNotFit,
    GroupRefused,
    NotAllowed,
    NoValidHost,
    QuotaExceeded,
    ShapeMoved,
    Superseded,
    TooOld,
    over_quota_in_words,
    why_no_member,
)

# The outcomes of a search for a host.


class Holds(Chosen, frozen=True, kw_only=True):
    """The outcome of a search that found a host: placement has granted the share of `choice` for this attempt. `is_new`
    is false if the instance held the share already, by an earlier claim: then nothing is known of other hosts.
    """

    attempt: int
    is_new: bool = False
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


class SameHostAgain(Struct, frozen=True):
    """Next step: claim on the same host again, since only the shape of its tree had moved."""

    reason: str = "its shape moved"


class OtherHost(Struct, frozen=True):
    """Next step: try another host, since this one has no room for the instance."""

    reason: str


class NewChoice(Struct, frozen=True):
    """Next step: choose anew, and leave the alternates. The picture lacked members of the server group, and these may
    forbid the alternates, too.
    """

    reason: str


# What follows a refused claim, if the search goes on.
NextTry = SameHostAgain | OtherHost | NewChoice


def refused_by_group(verdict: GroupRefused, host: str) -> NewChoice:
    """The next step when a server group's policy forbids the claim. `host` is the name of the host where the members are."""
    if verdict.rule is not None:
        return NewChoice(why_no_member(verdict.group, verdict.rule, verdict.domain, verdict.count))
    first = str(verdict.members[0])
    others = f" and {verdict.count - 1} more" if verdict.count > 1 else ""
    limit = f", at most {verdict.max_per_host} on a host" if verdict.policy == "anti-affinity" else ""
    return NewChoice(
        f"server group {verdict.group} ({verdict.policy}{limit}) has instance {first}{others} on {host}"
    )


def after_refusal(  # noqa: PLR0911 - one for each verdict
    verdict: ClaimVerdict, name_of: Callable[[ProviderId], str]
) -> SearchRefused | EndedElsewhere | NextTry:
    """The next step after this verdict on the claim of the chosen host; `name_of` names another host. `AlreadyClaimed` is
    left to `outcome_of_held`, which needs the state of the host that is held.
    """
    match verdict:
        case GroupRefused():
            return refused_by_group(verdict, name_of(verdict.host))
        case QuotaExceeded():
            return SearchRefused(over_quota_in_words(verdict), over_quota=True)
        case ShapeMoved():
            return SameHostAgain()
        case DoesNotFit():
            return OtherHost(_shortage(verdict))
        case Superseded(ended=True) | TooOld():
            return EndedElsewhere()
        case NotAllowed(field, reason) if field == SHARE_CELL:
            return OtherHost(reason)
        case NotAllowed(field, reason):
            return SearchRefused(f"placement does not allow the claim: {field}: {reason}")
        case _:
            return SearchRefused(f"placement answered the claim by {verdict!r}")


def outcome_of_held(
    held: AlreadyClaimed,
    host: HostState | None,
    amounts: Mapping[str, int],
    chosen: Chosen | None,
    *,
    alternates_max: int,
    row_wait_s: float,
) -> Outcome:
    """The outcome for an instance that holds a share already, by an earlier try of the same request, maybe on another
    host or in another cell.

    `host` is the state of the held host; None if its row was not there after `row_wait_s`. The request asks for
    `amounts`.
    """
    share = held.share
    if amounts_of(share) != amounts:
        return SearchRefused("it holds a share of other amounts, claimed for another request of the same id")
    if host is None:
        # The end of the request releases the claim.
        return SearchRefused(
            f"it holds a share of provider {share.host}, which is no host that any scheduler knows, for {row_wait_s:g} s"
        )
    choices = () if chosen is None or chosen.cell != host.cell else (chosen.choice, *chosen.alternates)
    others = [other for other in choices if other.share.host != host.id]
    choice = Choice(name=host.name, share=share, kind=host.kind)
    return Holds(host.cell, choice, tuple(others[:alternates_max]), attempt=held.attempt)


def amounts_of(share: Share) -> dict[str, int]:
    """What the share has of each resource class, of all providers together."""
    amounts: dict[str, int] = {}
    for each in share.amounts:
        amounts[each.resource] = amounts.get(each.resource, 0) + each.amount
    return amounts


def _shortage(verdict: DoesNotFit) -> str:
    said = [
        f"{short.resource} asked {short.asked}, free {max(short.free, 0)}" for short in verdict.shortfalls
    ]
    if full := verdict.full:
        said.append(f"has {full.instances} instances, at most {full.instances_max}")
    return ", ".join(said)
