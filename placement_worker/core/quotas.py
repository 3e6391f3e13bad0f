"""The quotas after a batch of orders to set limits: each order changes only the limits that it names."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from bus.messages.administration import Done, UnknownClass, WriteVerdict
from bus.messages.quotas import INSTANCES, SetQuota
from placement_worker.core.ledger import BatchDecision, Quota, QuotaBook
from placement_worker.core.vocabulary import Vocabulary, unknown_names

# The projects that the batch names, and the resource classes that it limits.
QuotaKeys = tuple[frozenset[str], frozenset[str]]


def keys_of_quotas(orders: Sequence[SetQuota]) -> QuotaKeys:
    classes = {name for order in orders for name in order.limits}
    return frozenset(order.project for order in orders), frozenset(classes - {INSTANCES})


def decide_quotas(
    book: QuotaBook, orders: Sequence[SetQuota], vocabulary: Vocabulary
) -> BatchDecision[WriteVerdict, tuple[Quota, ...]]:
    """Judge each order on the quotas as the earlier ones left them. The changes are the quotas of all projects that the batch
    names: one without limits is to be deleted.
    """
    quotas = dict(book.quotas)
    verdicts: list[WriteVerdict] = []
    for order in orders:
        # A limit of a class that was deleted meanwhile may still be removed.
        named = {name for name, limit in order.limits.items() if name != INSTANCES and limit is not None}
        if unknown := unknown_names(named, vocabulary.classes, book.classes):
            verdicts.append(UnknownClass(names=unknown))
            continue
        quota = quotas[order.project]
        quotas[order.project] = structs.replace(quota, limits=_changed(quota.limits, order.limits))
        verdicts.append(Done())
    return BatchDecision(tuple(verdicts), tuple(quotas.values()))


def _changed(limits: Mapping[str, int], by: Mapping[str, int | None]) -> dict[str, int]:
    merged = {**limits, **by}
    return {name: limit for name, limit in sorted(merged.items()) if limit is not None}


def wrong_quota(quota: Quota, used: Mapping[str, int]) -> str:
    """The sentence of an audit about a quota whose row does not say what its project's consumers use."""
    names = sorted({*quota.used, *used})
    wrong = next(name for name in names if quota.used.get(name, 0) != used.get(name, 0))
    return (
        f"the quota of project {quota.project} counts {quota.used.get(wrong, 0)} of {wrong}, "
        f"but its consumers use {used.get(wrong, 0)}"
    )
