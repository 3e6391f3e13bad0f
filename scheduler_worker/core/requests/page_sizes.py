"""The sizes of pages that a flavor leaves open: `hw:mem_page_size` is large or any. For each size it is a flavor of its own."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from bus.guests import HUGE_PAGES, SMALL_PAGES, GuestShape, is_whole_pages, read_guest
from bus.messages.build import Flavor

PAGE_SIZE = "hw:mem_page_size"
# In KiB. A host with pages of another size is found by a flavor that names that size.
LARGE_PAGES = (1048576, 2048)


def with_page_sizes(flavor: Flavor, image_properties: Mapping[str, str]) -> Sequence[tuple[str, Flavor]]:
    """The flavor itself if it leaves no size open; else one for each size, the largest first, with words for it."""
    if PAGE_SIZE not in flavor.extra_specs:
        return (("", flavor),)
    shape = read_guest(flavor, image_properties)
    if not isinstance(shape, GuestShape) or shape.page_size not in ("large", "any"):
        return (("", flavor),)
    sizes = [
        str(kib) for kib in LARGE_PAGES if all(is_whole_pages(cell.memory_mb, kib) for cell in shape.cells)
    ]
    if shape.page_size == "any":
        sizes.append("small")
    # No large page divides the memory: the smallest one says so as the problem of the request.
    return [_of_size(flavor, size) for size in sizes or (str(LARGE_PAGES[-1]),)]


def with_size_kept(flavor: Flavor, before: Flavor, image_properties: Mapping[str, str]) -> Flavor:
    """The flavor of a resize. If it leaves the size open, it has the one of the flavor before it; or the smallest, if that
    has another one.
    """
    open_sizes = [each for _, each in with_page_sizes(flavor, image_properties)]
    had = before.extra_specs.get(PAGE_SIZE)
    return next((each for each in open_sizes if each.extra_specs.get(PAGE_SIZE) == had), open_sizes[-1])


def is_memory(resource: str) -> bool:
    return resource == SMALL_PAGES or resource.startswith(HUGE_PAGES)


def _of_size(flavor: Flavor, size: str) -> tuple[str, Flavor]:
    words = " in small pages" if size == "small" else f" in pages of {size} KiB"
    return words, structs.replace(flavor, extra_specs={**flavor.extra_specs, PAGE_SIZE: size})
