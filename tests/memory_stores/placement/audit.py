"""Does placement's data contradict itself? One sentence for each contradiction.

More in use than there is, is no contradiction: an inventory may shrink below what is held.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from bus.messages.audit import BESIDE_INSTANCES
from engine.inventories import ConsumerId, ProviderId, ResourceAmount
from placement_worker.core.forest import depths_under
from placement_worker.core.ledger import Consumer, TreeBook

Consumers = Mapping[ConsumerId, Consumer]
Held = Mapping[ConsumerId, tuple[ResourceAmount, ...]]
Trees = Mapping[ProviderId, TreeBook]
# How many consumers have each provider as their host, as the provider's own row says.
Counted = Mapping[ProviderId, int]


def contradictions(consumers: Consumers, held: Held, trees: Trees, counted: Counted) -> tuple[str, ...]:
    return (
        *_of_usage(held, trees),
        *_of_consumers(consumers, held),
        *_of_hosts(consumers, held, counted),
        *_of_trees(trees),
    )


def _of_hosts(consumers: Consumers, held: Held, counted: Counted) -> Iterator[str]:
    living = Counter(consumer.host for consumer in consumers.values() if held.get(consumer.id))
    for provider, count in counted.items():
        if count != living[provider]:
            yield f"provider {provider} counts {count} consumers, but is the host of {living[provider]}"


def _of_usage(held: Held, trees: Trees) -> Iterator[str]:
    sums: dict[tuple[ProviderId, str], int] = {}
    for amounts in held.values():
        for amount in amounts:
            key = amount.provider, amount.resource
            sums[key] = sums.get(key, 0) + amount.amount
    for tree in trees.values():
        for book in tree.providers.values():
            for resource, inventory in book.inventories.items():
                total = sums.pop((book.id, resource), 0)
                if inventory.used != total:
                    yield f"{resource} of provider {book.id}: used is {inventory.used}, but {total} is held"
    for (provider, resource), total in sums.items():
        yield f"{resource} of provider {provider}: {total} is held, but there is no such inventory"


def _of_consumers(consumers: Consumers, held: Held) -> Iterator[str]:
    for holder in held:
        if holder not in consumers:
            yield f"consumer {holder} holds something, but does not exist"
    for consumer in consumers.values():
        holds = bool(held.get(consumer.id))
        if consumer.ended_at is not None:
            if holds:
                yield f"consumer {consumer.id} holds something, but ended at {consumer.ended_at.isoformat()}"
        elif not holds:
            yield f"consumer {consumer.id} has a live attempt, {consumer.attempt}, but holds nothing"
        elif consumer.attempt and consumer.host is None and consumer.type not in BESIDE_INSTANCES:
            yield f"consumer {consumer.id} has a live attempt, {consumer.attempt}, but no host"
        elif not consumer.generation:
            yield f"consumer {consumer.id} holds something at generation 0"


def _of_trees(trees: Trees) -> Iterator[str]:
    for root, tree in trees.items():
        if root not in tree.providers:
            yield f"the tree of {root} has no root"
            continue
        if tree.providers[root].parent is not None:
            yield f"root {root} has a parent, {tree.providers[root].parent}"
            continue
        depths = depths_under(root, tree.providers)
        for provider in tree.providers:
            if provider not in depths:
                yield f"provider {provider} is in the tree of {root}, but no parents lead from it to that root"
