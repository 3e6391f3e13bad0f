"""A claim for many consumers at once: placement grants all of it, or nothing."""

from typing import Annotated
from uuid import UUID

from msgspec import Meta

from bus.message import ConsumerId, Integer, Message, ProviderId
from bus.messages.placement import (
    AlreadyClaimed,
    Attempt,
    ConsumerType,
    Counter,
    DoesNotFit,
    GroupRefused,
    Label,
    Moment,
    Natural,
    NotAllowed,
    Positive,
    QuotaExceeded,
    ServerGroup,
    ShapeMoved,
    Superseded,
    TooOld,
    Value,
    Variant,
)


class TemplateAmount(Value, frozen=True, array_like=True):
    """An amount of one class in a `ShareTemplate`.

    `provider` is an index into the `providers` of each `ClaimPlace` that uses the template.
    """

    provider: Natural
    resource: Label
    amount: Positive


class ShareTemplate(Value, frozen=True, array_like=True):
    """What many shares have in common: everything but the providers, which each `ClaimPlace` names.

    `roots` are indexes into the `providers` of a `ClaimPlace`. They name the roots of the trees whose shapes the place
    lists in its `shapes`, in the same order.
    """

    cell: Label
    amounts: Annotated[tuple[TemplateAmount, ...], Meta(min_length=1, max_length=1000)]
    roots: Annotated[tuple[Natural, ...], Meta(max_length=1000)] = ()
    instances_max: Natural = 0


class ClaimPlace(Value, frozen=True, array_like=True):
    """One of the many consumers for which a message claims, and the providers of its share.

    `template` is the index of its `ShareTemplate`, whose amounts refer to the providers by their indexes. The first
    provider is the host.
    """

    consumer: ConsumerId
    template: Natural
    providers: Annotated[tuple[ProviderId, ...], Meta(min_length=1, max_length=2000)]
    shapes: Annotated[tuple[Counter, ...], Meta(max_length=1000)] = ()


class ClaimTogether(Message, frozen=True, tag="claims"):
    """Claims for many consumers. All of them are granted in one transaction, or none. A repeated claim gets the same verdict.

    `claim` identifies the claim: it is derived from its content.
    """

    claim: UUID
    attempt: Attempt
    issued_at: Moment
    templates: Annotated[tuple[ShareTemplate, ...], Meta(max_length=1000)]
    places: Annotated[tuple[ClaimPlace, ...], Meta(min_length=1, max_length=1000)]
    consumer_type: ConsumerType = "INSTANCE"
    project: Label = ""
    user: Label = ""
    group: ServerGroup | None = None


class AllClaimed(Variant, frozen=True, tag="all_claimed"):
    """All consumers hold their shares. `is_new` says that they held nothing before this claim."""

    is_new: bool


class RefusedPlace(Value, frozen=True):
    """A consumer that keeps a claim for many from being granted, and why: it cannot have its share beside those of the
    others.
    """

    consumer: ConsumerId
    verdict: (
        AlreadyClaimed
        | DoesNotFit
        | GroupRefused
        | QuotaExceeded
        | ShapeMoved
        | Superseded
        | TooOld
        | NotAllowed
    )


class NoneClaimed(Variant, frozen=True, tag="none_claimed"):
    """Nothing is claimed, since `count` consumers could not have their shares. `refused` are the first of them.

    Their `ShapeMoved` verdicts have no trees.
    """

    refused: tuple[RefusedPlace, ...]
    count: Integer


class ClaimsAnswered(Message, frozen=True, tag="claims.answered"):
    """The answer to a claim for many consumers."""

    claim: UUID
    verdict: AllClaimed | NoneClaimed | NotAllowed
