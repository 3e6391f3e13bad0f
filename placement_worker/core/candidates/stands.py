"""Stands: trees which a question cannot tell apart, so that what is found in one of them is found in all.

A cloud has thousands of trees and few kinds of hardware. Two trees of one form, of which the same places fit the same
slots, with the same room as far as the question can use it up, and with the same pools to take from, have the same
solutions, place by place. So the searching, which is done in Python, is done once a stand, and only what every tree
needs is done for every tree: a few bits in a few arrays, a number made of them, and a sort.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from placement_worker.core.candidates.budget import ROWS_PER_STEP, Budget
from placement_worker.core.candidates.columns import Flags, Ints, Rows
from placement_worker.core.candidates.coupling import Coupling
from placement_worker.core.candidates.fitting import Fitting
from placement_worker.core.candidates.forms import Form
from placement_worker.core.candidates.woods import Woods

CODE_BITS = 62
CHUNK_BITS = 16


class Stand(Struct, frozen=True):
    """`rows` has one line a tree, one column a place. `pools` share with each of these trees, and are in none."""

    form: Form
    rows: Rows
    pools: tuple[int, ...]


def stands(woods: Woods, fitting: Fitting, couplings: Sequence[Coupling], budget: Budget) -> Iterator[Stand]:
    """All trees in which each slot has somebody, each in one stand."""
    reach = _reach(woods, fitting)
    for form in list(woods.forms.values()):
        rows = form.rows[fitting.anchors[form.rows[:, 0]]]
        if len(rows):
            told = len(fitting.slots) + len(fitting.together) + len(couplings) + len(reach)
            budget.spend(told * (20 + 4 * rows.size // ROWS_PER_STEP))
            yield from _of_form(form, rows, fitting, couplings, reach)


def _of_form(
    form: Form,
    rows: Rows,
    fitting: Fitting,
    couplings: Sequence[Coupling],
    reach: Sequence[tuple[int, Flags]],
) -> Iterator[Stand]:
    labels = _Labels(len(rows))
    asked = np.zeros(rows.shape, dtype=np.bool_)
    unsuffixed = np.zeros(rows.shape, dtype=np.bool_)
    for slot in fitting.slots:
        fits = slot.fits[rows]
        labels.tell_apart_by_flags(fits)
        asked |= fits
        if not slot.is_suffixed:
            unsuffixed |= fits
        if slot.worth is not None:
            _, worth = np.unique(np.where(fits, slot.worth[rows], 0.0), return_inverse=True)
            labels.tell_apart_by_numbers(worth.reshape(rows.shape))
    for bearing in fitting.together:
        labels.tell_apart_by_flags(bearing[rows] & unsuffixed)
    for coupling in couplings:
        labels.tell_apart_by_numbers(np.where(asked, coupling.level[rows], 0))
    anchors = rows[:, 0]
    for _, reached in reach:
        labels.tell_apart_by_flags(reached[anchors][:, np.newaxis])
    for lines in labels.alike():
        first = anchors[lines[0]]
        pools = tuple(row for row, reached in reach if reached[first])
        yield Stand(form, rows[lines], pools)


def _reach(woods: Woods, fitting: Fitting) -> list[tuple[int, Flags]]:
    """Who shares, and with which roots: in its own tree it has a place, and is nobody's pool."""
    reach = []
    for row, roots in fitting.pools.items():
        reached = np.zeros(woods.rows, dtype=np.bool_)
        reached[roots] = True
        reached[woods.root[row]] = False
        reach.append((row, reached))
    return reach


class _Labels:
    """One number a line; two lines have the same one if nothing told them apart."""

    def __init__(self, lines: int) -> None:
        self._codes: Ints = np.zeros(lines, dtype=np.int64)
        self._bits = 0

    def tell_apart_by_flags(self, flags: Flags) -> None:
        for start in range(0, flags.shape[1], CHUNK_BITS):
            chunk = flags[:, start : start + CHUNK_BITS]
            if chunk.all() or not chunk.any():
                continue
            weights = 1 << np.arange(chunk.shape[1], dtype=np.int64)
            self._tell_apart(chunk.astype(np.int64) @ weights, chunk.shape[1])

    def tell_apart_by_numbers(self, numbers: Ints) -> None:
        for column in numbers.T:
            top = int(column.max())
            if top > column.min():
                self._tell_apart(column, top.bit_length())

    def alike(self) -> Iterator[Rows]:
        """The lines of each number."""
        if not self._bits:
            yield np.arange(len(self._codes))
            return
        order = np.argsort(self._codes, kind="stable")
        edges = np.flatnonzero(np.diff(self._codes[order])) + 1
        for start, end in pairwise((0, *edges.tolist(), len(order))):
            yield order[start:end]

    def _tell_apart(self, column: Ints, bits: int) -> None:
        if self._bits + bits > CODE_BITS:
            kinds, self._codes = np.unique(self._codes, return_inverse=True)
            self._bits = len(kinds).bit_length()
        self._codes = self._codes << bits | column
        self._bits += bits
