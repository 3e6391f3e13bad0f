"""A fingerprint of a provider tree without its inventories. Two equal ones show that only inventories have changed."""

import hashlib
from collections.abc import Iterable

import msgspec

from bus.messages.placement import ProviderState

_encode = msgspec.json.Encoder().encode


def tree_fingerprint(tree: Iterable[ProviderState]) -> str:
    """A hash of the tree's providers, their parents, traits and aggregates. Inventories are left out: placement itself
    checks whether a share still fits.
    """
    parts = sorted((state.id, state.parent, state.traits, state.aggregates) for state in tree)
    return hashlib.blake2b(_encode(parts), digest_size=8).hexdigest()
