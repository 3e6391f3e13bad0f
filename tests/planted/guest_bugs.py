"""Planted bugs in what a guest with a shape gets: pages, dedicated processors, and functions of cards."""

from contextlib import AbstractContextManager
from typing import Any

from engine.requests import groups
from laboratory.computes.hosts import VIRTUAL_FUNCTIONS
from placement_worker.core import drafts
from tests.planted.replacing import planted_as, planted_by, replaced

# Whatever pages the flavor asks for, the memory is claimed in small ones.
planted_by("a page size ignored", groups, "cell_amounts", world="guests")(
    lambda real: lambda shape, _page_kib: real(shape, 0)
)


@planted_as("a virtual function given twice", world="guests")
def virtual_function_given_twice() -> AbstractContextManager[None]:
    """A claim gets a virtual function, whether one is left or not: placement relies on the scheduler's picture."""
    return _always_fits(VIRTUAL_FUNCTIONS)


@planted_as("a pinned processor given twice", world="guests")
def pinned_processor_given_twice() -> AbstractContextManager[None]:
    """A claim gets dedicated processors, whether these are left or not."""
    return _always_fits("PCPU")


def _always_fits(always: str) -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        def shortfall_of(usage: Any, resource: str, asked: int, held: int) -> Any:
            is_there = resource == always and resource in usage.row.limits
            return None if is_there else real(usage, resource, asked, held)

        return shortfall_of

    return replaced(drafts, "shortfall_of", planted)
