"""Claims for many consumers as one message: templates, each with what many shares have in common, and a place for each consumer."""

from collections.abc import Sequence

from bus.messages.books import ClaimPlace, ClaimTogether, ShareTemplate, TemplateAmount
from bus.messages.placement import ClaimResources
from engine.inventories import ResourceAmount, ShapeSeen, Share
from engine.refusals import NotAllowed


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
