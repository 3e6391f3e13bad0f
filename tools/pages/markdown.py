"""The parts that the generated pages share."""

from collections.abc import Iterable


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def docstring_of(kind: type) -> str:
    """The class's docstring. msgspec gives a class without one its signature as docstring, which is dropped."""
    words = " ".join((kind.__doc__ or "").split())
    return "" if words.startswith(f"{kind.__name__}(") else words
