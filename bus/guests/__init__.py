"""The processors, memory and devices of a guest, as its flavor and its image ask for them. Schedulers and drivers of computes
read the same shape: what is claimed is what is built.
"""

from bus.guests.asked import HARDWARE_IMAGE_KEYS, HOST_SCOPES, HOST_SPEC_KEYS, is_host_key
from bus.guests.pages import is_whole_pages
from bus.guests.placing import ShareDiffersError, cell_amounts, cells_of, page_kib_of
from bus.guests.reading import IMAGE_KEYS, SPEC_KEYS, is_guest_key, read_guest
from bus.guests.shape import HUGE_PAGES, SMALL_PAGES, GuestCell, GuestProblem, GuestShape, memory_class

__all__ = [
    "HARDWARE_IMAGE_KEYS",
    "HOST_SCOPES",
    "HOST_SPEC_KEYS",
    "HUGE_PAGES",
    "IMAGE_KEYS",
    "SMALL_PAGES",
    "SPEC_KEYS",
    "GuestCell",
    "GuestProblem",
    "GuestShape",
    "ShareDiffersError",
    "cell_amounts",
    "cells_of",
    "is_guest_key",
    "is_host_key",
    "is_whole_pages",
    "memory_class",
    "page_kib_of",
    "read_guest",
]
