"""What a tree is, beside how much there is of it: whether it is still what it was when somebody chose it."""

import hashlib
from collections.abc import Iterable

import msgspec

from bus.messages.placement import ProviderState

_encode = msgspec.json.Encoder().encode


def qualities_of(tree: Iterable[ProviderState]) -> str:
    """Equal for two states of a tree if its providers, their places in it, their traits and their aggregates are the
    same. Inventories may differ: whether a share still fits there placement judges by itself.
    """
    parts = [
        (state.id, state.parent, state.traits, state.aggregates)
        for state in sorted(tree, key=lambda state: state.id.int)
    ]
    return hashlib.blake2b(_encode(parts), digest_size=8).hexdigest()
