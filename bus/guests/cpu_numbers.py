"""Sets of a guest's processors, as extra specs write them: `0-3,^2,6`."""

import re

_PART = re.compile(r"\s*(\^?)\s*([0-9]{1,6})\s*(?:-\s*([0-9]{1,6})\s*)?", re.ASCII)


def read_cpu_numbers(text: str, count: int) -> frozenset[int]:
    """The numbers in this text, of a guest with `count` processors. If all parts exclude, they exclude from all.
    A ValueError says what is wrong.
    """
    taken: set[int] = set()
    excluded: set[int] = set()
    parts = [part for part in text.split(",") if part.strip()]
    for part in parts:
        read = _PART.fullmatch(part)
        if read is None:
            raise ValueError(
                f"{part.strip()!r} is neither a number, as in 3, nor a range, as in 0-3, nor an exclusion, as in ^2"
            )
        caret, low, high = read.groups()
        first, last = int(low), int(high or low)
        if first > last:
            raise ValueError(f"the range {part.strip()!r} ends before it begins")
        if last >= count:
            raise ValueError(
                f"there is no processor {last}: flavor.vcpus is {count}, so the last one is {count - 1}"
            )
        (excluded if caret else taken).update(range(first, last + 1))
    if excluded and not taken:
        taken.update(range(count))
    return frozenset(taken - excluded)
