"""The memory of a long answer stays with the process when it is freed, for the next answer.

By itself glibc gives it back to the kernel, which clears each page again at its next use: that took a fifth of the CPU of an
answer of 6 MB.
"""

import ctypes
from typing import Final

# The numbers of these options in glibc's malloc.h.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3

# So much free memory is kept at most.
KEPT_BYTES_MAX: Final = 64 * 2**20
# Larger parts are given back at once. This is the largest number that glibc takes.
_PART_BYTES_MAX: Final = 32 * 2**20


def keep_freed_memory() -> None:
    """Set this for the whole process. Without glibc, nothing is done."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
        mallopt(_MMAP_THRESHOLD, _PART_BYTES_MAX)
