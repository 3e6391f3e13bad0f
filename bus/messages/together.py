"""Claims for many consumers as one message, of which placement grants all or nothing: templates, each with what many shares have in
common, and a place for each consumer.
"""

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from msgspec import Meta

from bus.message import AnswerMessage, Kind, Message, Route
from bus.messages.placement import Attempt, ClaimResources, ConsumerType
from engine.inventories import (
    ConsumerId,
    Counter,
    Integer,
    Label,
    Moment,
    Natural,
    Positive,
    ProviderId,
    ResourceAmount,
    ServerGroup,
    ShapeSeen,
    Share,
    Value,
    Variant,
)
from engine.refusals import (
    AlreadyClaimed,
    DoesNotFit,
    GroupRefused,
    NotAllowed,
    QuotaExceeded,
    ShapeMoved,
    Superseded,
    TooOld,
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

    ROUTE = Route(Kind.QUESTION, "placement.claims", answer="claims.answered", by=("scheduler",))

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


class ClaimsAnswered(AnswerMessage, frozen=True, tag="claims.answered"):
    """The answer to a claim for many consumers."""

    claim: UUID
    verdict: AllClaimed | NoneClaimed | NotAllowed


def taken_together(
    claims: Sequence[ClaimResources],
) -> tuple[tuple[ShareTemplate, ...], tuple[ClaimPlace, ...]]:
    templates: dict[ShareTemplate, int] = {}
    places: list[ClaimPlace] = []
    for claim in claims:
        share = claim.share
        # The host first.
        named = [
            share.host,
            *[each.provider for each in share.amounts],
            *[each.root for each in share.shapes],
        ]
        providers = tuple(dict.fromkeys(named))
        numbers = {provider: position for position, provider in enumerate(providers)}
        template = ShareTemplate(
            cell=claim.cell,
            amounts=tuple(
                [
                    TemplateAmount(
                        provider=numbers[amount.provider], resource=amount.resource, amount=amount.amount
                    )
                    for amount in share.amounts
                ]
            ),
            roots=tuple([numbers[seen.root] for seen in share.shapes]),
            instances_max=share.instances_max,
        )
        number = templates.setdefault(template, len(templates))
        shapes = tuple([seen.shape for seen in share.shapes])
        places.append(
            ClaimPlace(consumer=claim.consumer, template=number, providers=providers, shapes=shapes)
        )
    return tuple(templates), tuple(places)


def claims_of(together: ClaimTogether) -> list[ClaimResources] | NotAllowed:
    """Turn a claim for many consumers into single claims, one for each consumer; or say which place is wrong."""
    claims: list[ClaimResources] = []
    for place in together.places:
        share = _put_together(together.templates, place)
        if share is None:
            reason = "there is no such template, or it counts other providers or shapes"
            return NotAllowed(field="places", reason=f"consumer {place.consumer}: {reason}")
        claims.append(
            ClaimResources(
                cell=together.templates[place.template].cell,
                consumer=place.consumer,
                attempt=together.attempt,
                issued_at=together.issued_at,
                share=share,
                consumer_type=together.consumer_type,
                project=together.project,
                user=together.user,
                group=together.group,
            )
        )
    return claims


def _put_together(templates: Sequence[ShareTemplate], place: ClaimPlace) -> Share | None:
    if place.template >= len(templates):
        return None
    template, providers = templates[place.template], place.providers
    named = [*template.roots, *[amount.provider for amount in template.amounts]]
    if len(template.roots) != len(place.shapes) or max(named) >= len(providers):
        return None
    return Share(
        host=providers[0],
        amounts=tuple(
            [
                ResourceAmount(provider=providers[each.provider], resource=each.resource, amount=each.amount)
                for each in template.amounts
            ]
        ),
        shapes=tuple(
            [
                ShapeSeen(root=providers[number], shape=shape)
                for number, shape in zip(template.roots, place.shapes, strict=True)
            ]
        ),
        instances_max=template.instances_max,
    )
