"""The administrators' own providers, consumers, aggregates and custom names. Hosts are not among them: computes report
those.
"""

from uuid import NAMESPACE_OID, UUID, uuid5

from engine.inventories import AggregateId, ConsumerId, ProviderId

TRAITS = ("CUSTOM_LABEL_A", "CUSTOM_LABEL_B")
CLASS, RENAMED_CLASS = "CUSTOM_CLASS", "CUSTOM_RENAMED"
SHARES = "MISC_SHARES_VIA_AGGREGATE"


def _id(name: str) -> UUID:
    # Other words would give other ids, and the kept seeds would run differently.
    return uuid5(NAMESPACE_OID, f"of the clerks: {name}")


PROVIDER_NAMES = ("barn", "forge", "manor", "mill", "well", "yard")
OWN_PROVIDERS = tuple(ProviderId(_id(name)) for name in PROVIDER_NAMES)
POOL = ProviderId(_id("pool"))
CONSUMERS = tuple(ConsumerId(_id(f"tenant {n}")) for n in range(8))
AGGREGATES = tuple(AggregateId(_id(f"group {n}")) for n in range(3))


def child_of(parent: str) -> ProviderId:
    """The child of a provider that a reshape moves inventory to."""
    return ProviderId(_id(f"part of {parent}"))
