"""May all of these claims be granted, right now? If not, none of them is.

A claim for many consumers is one message (`ClaimTogether`). It has templates, each with what many shares have in common, and for
each consumer a `ClaimPlace`, which adds the providers to a template. `taken_together` makes these of single claims, and
`claims_of` turns them back. Single claims are judged as all others are (claims.py), one after another:
each takes from what the earlier ones left free. If one is refused, all are undone.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from bus.message import ConsumerId, ProviderId
from bus.messages.all_or_nothing import (
    AllClaimed,
    ClaimPlace,
    ClaimTogether,
    ShareTemplate,
    TemplateAmount,
)
from bus.messages.placement import (
    NO_OWNER,
    AlreadyClaimed,
    Claimed,
    ClaimResources,
    DoesNotFit,
    GroupRefused,
    NotAllowed,
    QuotaExceeded,
    Released,
    ResourceAmount,
    ShapeSeen,
    Share,
    Superseded,
    TooOld,
)
from placement_worker.core.claims import judge_order
from placement_worker.core.drafts.ledger_draft import LedgerDraft
from placement_worker.core.drafts.quota_draft import counted, sums_of
from placement_worker.core.ledger import BatchDecision, ClaimChanges, Ledger, SentOrder
from placement_worker.core.shares import MovedRoots

Refusal = (
    AlreadyClaimed | DoesNotFit | GroupRefused | QuotaExceeded | MovedRoots | Superseded | TooOld | NotAllowed
)


# All consumers have their shares; or these may not have theirs, with the reason of each, and nothing is claimed.
TogetherJudgement = AllClaimed | tuple[tuple[ConsumerId, Refusal], ...]


def decide_together(
    ledger: Ledger, claims: Sequence[Sequence[SentOrder]], now: datetime, horizon: timedelta
) -> BatchDecision[TogetherJudgement, ClaimChanges]:
    """Judge each claim for many consumers on the ledger as the earlier such claims of the batch left it."""
    draft = LedgerDraft(ledger)
    verdicts = tuple([_judge(draft, each, now, horizon) for each in claims])
    return BatchDecision(verdicts, draft.changes())


def _judge(
    draft: LedgerDraft, claim: Sequence[SentOrder], now: datetime, horizon: timedelta
) -> TogetherJudgement:
    if over := _over_quota(draft, claim):
        return over
    before = draft.saved([each.order for each in claim])
    judged = [judge_order(draft, each, now, horizon) for each in claim]
    refused = [
        (each.order, verdict)
        for each, verdict in zip(claim, judged, strict=True)
        # No verdict on a claim is `Released`.
        if not isinstance(verdict, Claimed | Released)
    ]
    if not refused:
        return AllClaimed(is_new=True)
    draft.restore(before)
    if len(refused) == len(claim) and all(_holds_just_that(order, verdict) for order, verdict in refused):
        return AllClaimed(is_new=False)
    return tuple([(order.consumer, verdict) for order, verdict in refused])


def _over_quota(
    draft: LedgerDraft, claim: Sequence[SentOrder]
) -> tuple[tuple[ConsumerId, Refusal], ...] | None:
    """The refusal of all, if what those of them count together that hold nothing yet is over the quota of their project."""
    orders = [each.order for each in claim if isinstance(each.order, ClaimResources)]
    new = [order for order in orders if not draft.consumer(order.consumer).held]
    if draft.quotas is None or not new:
        return None
    growth = Counter[str]()
    for order in new:
        growth.update(counted(order.consumer_type, (), sums_of(order.share.amounts)))
    # All claims of one message name the same project.
    over = draft.quotas.judge_growth(new[0].project or NO_OWNER, growth)
    return None if over is None else tuple([(order.consumer, over) for order in new])


def _holds_just_that(order: object, verdict: Refusal) -> bool:
    """Does the consumer already hold what the order claims, by the same attempt? Then the claim is a repetition."""
    return (
        isinstance(order, ClaimResources)
        and isinstance(verdict, AlreadyClaimed)
        and (verdict.attempt, verdict.share.host) == (order.attempt, order.share.host)
        and _sums(verdict.share) == _sums(order.share)
    )


def _sums(share: Share) -> Counter[tuple[ProviderId, str]]:
    sums = Counter[tuple[ProviderId, str]]()
    for amount in share.amounts:
        sums[amount.provider, amount.resource] += amount.amount
    return sums


def taken_together(
    claims: Sequence[ClaimResources],
) -> tuple[tuple[ShareTemplate, ...], tuple[ClaimPlace, ...]]:
    templates: dict[ShareTemplate, int] = {}
    places: list[ClaimPlace] = []
    for claim in claims:
        template, providers, shapes = _taken_apart(claim)
        number = templates.setdefault(template, len(templates))
        places.append(
            ClaimPlace(consumer=claim.consumer, template=number, providers=providers, shapes=shapes)
        )
    return tuple(templates), tuple(places)


def _taken_apart(claim: ClaimResources) -> tuple[ShareTemplate, tuple[ProviderId, ...], tuple[int, ...]]:
    share = claim.share
    # The host first.
    providers = tuple(
        dict.fromkeys(
            [share.host, *[each.provider for each in share.amounts], *[each.root for each in share.shapes]]
        )
    )
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
    return template, providers, tuple([seen.shape for seen in share.shapes])


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
