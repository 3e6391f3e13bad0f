"""The size of the pages that a guest's memory is in. An image may only choose where the flavor leaves a choice."""

import re

from bus.guests.asked import PAGES, GuestKeys
from bus.guests.shape import GuestCell, PageSize

KIB_PER_MIB = 1024
# Small pages of nearly all machines; a host whose small pages are larger names these by their size.
SMALL_KIB = 4
PAGE_KIB_MAX = 16 * 1024 * 1024
_SIZE = re.compile(r"([0-9]{1,10})(?:([KkMGT])(?:i?B)?)?", re.ASCII)
_KIB_PER_UNIT = {"k": 1, "K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}
_ALLOWED = "a page size is small, large, any, or a size such as 2048 (in KiB), 2MB or 1GB"


def read_page_size(asked: GuestKeys) -> tuple[PageSize, int]:
    """The page size, and its KiB if it is `sized`."""
    flavor, image = asked.of_flavor(PAGES), asked.of_image(PAGES)
    if flavor is None:
        if image is not None:
            asked.wrong_in_image(
                PAGES, "the flavor has no hw:mem_page_size, and so the image may not choose one"
            )
        return "", 0
    size = _read(flavor)
    if size is None:
        asked.wrong_in_flavor(PAGES, _ALLOWED)
        return "", 0
    if image is None:
        return size
    of_image = _read(image)
    if of_image is None:
        asked.wrong_in_image(PAGES, _ALLOWED)
    elif size[0] in ("large", "any"):
        return of_image
    elif of_image != size and not _includes(of_image[0], size[0]):
        asked.wrong_in_image(
            PAGES, f"the flavor says {flavor}: an image may choose only beside large and any"
        )
    return size


def _includes(image: PageSize, flavor: PageSize) -> bool:
    """Does the image leave open what the flavor has decided?"""
    return image == "any" or (image == "large" and flavor == "sized")


def check_pages(asked: GuestKeys, cells: tuple[GuestCell, ...], page_size: PageSize, page_kib: int) -> None:
    """Is each cell's memory made of whole pages?"""
    if page_size and not asked.flavor.ram_mb:
        asked.wrong_where_said(PAGES, "it is about memory, and flavor.ram_mb is 0")
    for number, cell in enumerate(cells):
        if page_kib and not is_whole_pages(cell.memory_mb, page_kib):
            asked.wrong_where_said(
                PAGES,
                f"guest cell {number} has {cell.memory_mb} MB, which are not whole pages of {page_kib} KiB",
            )
            return


def is_whole_pages(memory_mb: int, page_kib: int) -> bool:
    return memory_mb * KIB_PER_MIB % page_kib == 0


def _read(text: str) -> tuple[PageSize, int] | None:
    match text:
        case "small" | "large" | "any":
            return text, 0
    read = _SIZE.fullmatch(text)
    if read is None:
        return None
    kib = int(read[1]) * _KIB_PER_UNIT[read[2] or "K"]
    if not SMALL_KIB <= kib <= PAGE_KIB_MAX or kib & (kib - 1):
        return None
    return ("small", 0) if kib == SMALL_KIB else ("sized", kib)
