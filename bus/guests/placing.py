"""Which host cell each guest cell stands on, by the share that was claimed for the guest."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from bus.guests.shape import HUGE_PAGES, SMALL_PAGES, GuestShape, memory_class
from bus.message import ProviderId

# Of a host's cell: its number, say.
HostCell = TypeVar("HostCell")
Amounts = Mapping[str, int]

_CPUS = ("VCPU", "PCPU")


class ShareDiffersError(ValueError):
    """The share does not give what the shape asks for: they are not of one claim."""


def cell_amounts(shape: GuestShape, page_kib: int) -> tuple[dict[str, int], ...]:
    """What each guest cell takes from its host cell, by class, with memory in pages of this size (0: small ones)."""
    memory = memory_class(page_kib)
    return tuple(
        [
            {
                resource: amount
                for resource, amount in (
                    ("VCPU", len(cell.shared)),
                    ("PCPU", len(cell.dedicated) + (0 if number else shape.emulator_cpus)),
                    (memory, cell.memory_mb),
                )
                if amount
            }
            for number, cell in enumerate(shape.cells)
        ]
    )


def page_kib_of(share: Mapping[ProviderId, Amounts]) -> int:
    """The size of the pages that the share takes memory in; 0: small ones."""
    sizes = sorted(
        {
            int(resource.removeprefix(HUGE_PAGES))
            for amounts in share.values()
            for resource in amounts
            if resource.startswith(HUGE_PAGES) and resource.removeprefix(HUGE_PAGES).isdecimal()
        }
    )
    if len(sizes) > 1:
        raise ShareDiffersError(f"the share has pages of several sizes: {', '.join(map(str, sizes))} KiB")
    return sizes[0] if sizes else 0


def cells_of(
    shape: GuestShape, share: Mapping[ProviderId, Amounts], cells: Mapping[ProviderId, HostCell]
) -> tuple[HostCell, ...]:
    """The host cell of each guest cell, in the order of the guest's cells; empty for a guest without a topology.

    `cells` are the providers that are cells of the host; of a host without cells, its root. Equal guest cells are
    interchangeable: the first one gets the first host cell in the order of `cells`.
    """
    if not shape.cells:
        return ()
    page_kib = page_kib_of(share)
    if not _is_of_size(shape, page_kib):
        raise ShareDiffersError(
            f"the share has memory in {memory_class(page_kib)}, and the guest asks for {_size_in_words(shape)}"
        )
    given = {provider: _of_cells(share[provider]) for provider in cells if provider in share}
    left = {provider: amounts for provider, amounts in given.items() if amounts}
    found: list[HostCell] = []
    for number, asked in enumerate(cell_amounts(shape, page_kib)):
        provider = next((provider for provider, amounts in left.items() if amounts == asked), None)
        if provider is None:
            raise ShareDiffersError(
                f"guest cell {number} takes {_shown(asked)}, and the share has {_listed(list(given.values()))}"
            )
        del left[provider]
        found.append(cells[provider])
    if left:
        raise ShareDiffersError(
            f"no guest cell takes what the share has beside: {_listed(list(left.values()))}"
        )
    return tuple(found)


def _is_of_size(shape: GuestShape, page_kib: int) -> bool:
    match shape.page_size:
        case "any":
            return True
        case "large":
            return page_kib > 0
        case _:
            return page_kib == shape.page_kib


def _size_in_words(shape: GuestShape) -> str:
    return shape.page_size if shape.page_size == "large" else memory_class(shape.page_kib)


def _of_cells(amounts: Amounts) -> dict[str, int]:
    return {
        resource: amount
        for resource, amount in amounts.items()
        if resource in _CPUS or resource == SMALL_PAGES or resource.startswith(HUGE_PAGES)
    }


def _shown(amounts: Amounts) -> str:
    return ", ".join(f"{resource} {amount}" for resource, amount in sorted(amounts.items())) or "nothing"


def _listed(amounts: Sequence[Amounts]) -> str:
    return "; ".join(map(_shown, amounts)) or "no cell"
