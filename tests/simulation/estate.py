"""What clerks call their own, beside the hosts, which have reporters: providers, tenants, aggregates, custom names."""

from uuid import NAMESPACE_OID, UUID, uuid5

from bus.message import AggregateId, ConsumerId, ProviderId

LABELS = ("CUSTOM_LABEL_A", "CUSTOM_LABEL_B")
ACRE, FIELD = "CUSTOM_ACRE", "CUSTOM_FIELD"
SHARES = "MISC_SHARES_VIA_AGGREGATE"


def _id(name: str) -> UUID:
    return uuid5(NAMESPACE_OID, f"of the clerks: {name}")


NAMES = ("barn", "forge", "manor", "mill", "well", "yard")
OWN = tuple(ProviderId(_id(name)) for name in NAMES)
POOL = ProviderId(_id("pool"))
TENANTS = tuple(ConsumerId(_id(f"tenant {n}")) for n in range(8))
GROUPS = tuple(AggregateId(_id(f"group {n}")) for n in range(3))


def part_of(whole: str) -> ProviderId:
    """The child of a provider that one of its classes may go to."""
    return ProviderId(_id(f"part of {whole}"))
