"""Compares our choice for an instance with Nova's: the same host, one as good, a worse or a better one, or one that we refuse.

Both hosts are judged by how they looked when the request came. Instances of one request are alike: which of them got which host does
not count. A host that took instances of the same request before is judged with them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from bus.message import ProviderId
from scheduler_worker.core.choosing.host_views import HostViews
from scheduler_worker.nova_shadow.core.notes import ShadowVerdict, WeighersCompared

# The filter that is named for a host which this scheduler does not know.
UNKNOWN_HOST = "known"
# A weigher that gives both hosts nearly the same is no reason.
_SAME = 1e-9


class HostsPaired(Struct, frozen=True):
    """Our host for an instance, and Nova's; None for no host. `..._taken` says how many instances of the request it had by then."""

    ours: ProviderId | None
    nova: ProviderId | None
    ours_taken: int = 0
    nova_taken: int = 0


class ChoicesCompared(Struct, frozen=True):
    verdict: ShadowVerdict
    filter: str = ""
    weighed: tuple[WeighersCompared, ...] = ()


def pair_hosts(
    ours: Sequence[ProviderId | None], novas: Sequence[ProviderId | None]
) -> Sequence[HostsPaired]:
    """For each instance a host of ours beside Nova's: the same one if we chose it for any instance of the request."""
    left = Counter(each for each in ours if each is not None)
    same: list[ProviderId | None] = []
    for nova in novas:
        if nova is not None and left[nova] > 0:
            left[nova] -= 1
            same.append(nova)
        else:
            same.append(None)
    others = _in_order(ours, left)
    paired = [host if host is not None else next(others, None) for host in same]
    return [
        HostsPaired(our, nova, ours_taken, nova_taken)
        for (our, ours_taken), (nova, nova_taken) in zip(_counted(paired), _counted(novas), strict=True)
    ]


def compare_choices(
    pair: HostsPaired, views: HostViews | None, without: HostViews | None = None
) -> ChoicesCompared:
    """`views` says how hosts looked when the request came; None if the request could not be read. `without` says the same without our
    choices for earlier requests: these took room that Nova may have left free. So a host is refused only if it is refused by both.
    """
    if pair.nova is not None and views is not None and without is not None:
        is_in_our_way = _refused_by(views, pair.nova) and not _refused_by(without, pair.nova)
        if is_in_our_way and (pair.ours is None or not _refused_by(without, pair.ours)):
            views = without
    if pair.nova is None:
        return ChoicesCompared("neither" if pair.ours is None else "only_ours")
    refused_by = "" if views is None else _refused_by(views, pair.nova)
    if pair.ours is None:
        return ChoicesCompared("only_nova", filter=refused_by)
    if pair.ours == pair.nova:
        return ChoicesCompared("same")
    if refused_by:
        return ChoicesCompared("filtered", filter=refused_by)
    assert views is not None, "a request for which a host was chosen was read"
    our_row, row = views.row_of(pair.ours), views.row_of(pair.nova)
    ours, nova = views.bands_below(our_row, pair.ours_taken), views.bands_below(row, pair.nova_taken)
    verdict: ShadowVerdict = "as_good" if ours == nova else "nova_worse" if ours > nova else "nova_better"
    return ChoicesCompared(verdict, weighed=_weighed(views, our_row, row))


def in_words(
    compared: ChoicesCompared, pair: HostsPaired, name_of: Callable[[ProviderId], str], *, why_filtered: str
) -> str:
    """Why the verdict is this one, with the numbers. `why_filtered` is what the filter says of Nova's host; empty if it has nothing
    against it any more.
    """
    nova = "" if pair.nova is None else name_of(pair.nova)
    if compared.filter == UNKNOWN_HOST:
        return f"this scheduler does not know {nova}"
    if compared.filter:
        why = why_filtered or "it had when the request came, and has not any more"
        return f"{compared.filter} refuses {nova}: {why}"
    if compared.verdict not in ("nova_worse", "nova_better") or pair.ours is None:
        return ""
    ours = name_of(pair.ours)
    telling = [
        f"{each.weigher} {each.ours:g} on {ours}, {each.nova:g} on {nova} ({each.ahead:+.2f})"
        for each in compared.weighed
    ]
    if pair.ours_taken or pair.nova_taken:
        telling.append(
            f"with {pair.ours_taken} and {pair.nova_taken} instances of the same request there before"
        )
    return "; ".join(telling)


def _refused_by(views: HostViews, host: ProviderId) -> str:
    row = views.row_of(host)
    return UNKNOWN_HOST if row < 0 else views.filter_against(row)


def _weighed(views: HostViews, ours: int, nova: int) -> tuple[WeighersCompared, ...]:
    """The weighers that tell both hosts apart; first the one that counts most."""
    found = [
        WeighersCompared(our.weigher, our.weight, their.weight, our.part - their.part)
        for our, their in zip(views.weighed(ours), views.weighed(nova), strict=True)
        if abs(our.part - their.part) > _SAME
    ]
    return tuple(sorted(found, key=lambda each: (-abs(each.ahead), each.weigher)))


def _in_order(hosts: Sequence[ProviderId | None], left: Counter[ProviderId]) -> Iterator[ProviderId]:
    """The hosts that are left, in the order in which they were chosen."""
    for host in hosts:
        if host is not None and left[host] > 0:
            left[host] -= 1
            yield host


def _counted(hosts: Sequence[ProviderId | None]) -> Iterator[tuple[ProviderId | None, int]]:
    """Each host, with how often it came before."""
    seen = Counter[ProviderId]()
    for host in hosts:
        yield host, 0 if host is None else seen[host]
        if host is not None:
            seen[host] += 1
