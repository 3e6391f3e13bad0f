"""The limit on the cost of one search for candidates. It is counted in steps and bytes, never in time: a query costs the
same on every machine.

A step is about one look at one part of the query, one provider or one line of text, or at a few dozen rows of a column: 0.1 to 0.5
microseconds. Bytes are what the tables of a search hold, estimated upwards. Each loop whose length depends on the query
spends steps, and each table that grows with the query holds bytes.

A budget may have a mark: after every so many steps it calls `at_mark`, which may let other tasks run. Between two marks
no other task runs.
"""

from collections.abc import Callable

from msgspec import Struct

from engine.refusals import TooCostly

# Rows of a column that one step looks at.
ROWS_PER_STEP = 64
_STEPS_PER_PAIR = 16
# Steps of a search from one candidate to the next, or to the end. See `SearchLimits`.
_BARREN_STEPS_MAX = 8_000_000


class SearchLimits(Struct, frozen=True):
    """The limits of one search for candidates.

    The hardest query that OpenStack's Placement answers within ten seconds takes five million steps
    (tests/conformance/test_candidates_upstream.py), a second of CPU time. The default of `steps_max` is four times that.
    A search that finds many candidates may spend all of it, and writes a hundred thousand of them.
    """

    steps_max: int = 20_000_000
    bytes_max: int = 256 * 1024 * 1024
    # Length of the answer: several times what Placement can write in ten seconds.
    answer_bytes_max: int = 128 * 1024 * 1024

    @property
    def barren_steps_max(self) -> int:
        """The most steps from one candidate to the next. A search that has found none for so long will hardly find one with
        more steps, so it is refused earlier than one that goes on finding some.
        """
        return max(min(self.steps_max, _BARREN_STEPS_MAX), self.steps_max * 2 // 5)

    @property
    def memo_bytes_max(self) -> int:
        """The most bytes of the memory of dead ends (slot_solver.py): it saves steps, and takes no more when it is full."""
        return self.bytes_max // 4


DEFAULT_LIMITS = SearchLimits()


class CutError(Exception):
    """The search would exceed its budget. The caller that gave the budget answers with `verdict`."""

    def __init__(self, verdict: TooCostly) -> None:
        super().__init__(f"{verdict.spent} {verdict.what}, and the budget is {verdict.budget}")
        self.verdict = verdict


class Budget:
    """Counts the steps, the memory and the answer's bytes of one search, and stops the search at its limits."""

    __slots__ = (
        *("_at_mark", "_barren_max", "_mark", "_mark_every", "_next_mark", "_progress_at"),
        *("answer_bytes", "held", "held_most", "limits", "steps"),
    )

    def __init__(
        self,
        limits: SearchLimits = DEFAULT_LIMITS,
        at_mark: Callable[[], None] | None = None,
        mark_every: int = 0,
    ) -> None:
        self.limits = limits
        self.steps = 0
        self.held = self.held_most = 0
        self.answer_bytes = 0
        self._at_mark = at_mark
        self._mark_every = mark_every
        # How many steps were spent when the search last found or wrote a candidate.
        self._progress_at = 0
        self._barren_max = limits.barren_steps_max
        self._next_mark = limits.steps_max if at_mark is None else mark_every
        self._mark = self._stop()

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > self._mark:
            self._come_to_mark()

    def progress(self) -> None:
        """The search has found a candidate, or written one."""
        self._progress_at = self.steps
        self._mark = self._stop()

    def hold(self, size: int) -> None:
        self.held += size
        if self.held > self.held_most:
            self.held_most = self.held
            if self.held > self.limits.bytes_max:
                raise CutError(TooCostly(what="bytes", spent=self.held, budget=self.limits.bytes_max))

    def let_go(self, size: int) -> None:
        self.held -= size

    def tell(self, size: int) -> None:
        """Count bytes of the answer before they are written. Raises CutError if the answer would be too long."""
        self.progress()
        self.answer_bytes += size
        if self.answer_bytes > self.limits.answer_bytes_max:
            raise CutError(
                TooCostly(what="answer_bytes", spent=self.answer_bytes, budget=self.limits.answer_bytes_max)
            )

    def _come_to_mark(self) -> None:
        limits = self.limits
        if self.steps > limits.steps_max:
            raise CutError(TooCostly(what="steps", spent=self.steps, budget=limits.steps_max))
        if (barren := self.steps - self._progress_at) > self._barren_max:
            raise CutError(TooCostly(what="steps", spent=barren, budget=self._barren_max))
        assert self._at_mark is not None, "without at_mark the mark is the limit of steps"
        self._next_mark = self.steps + self._mark_every
        self._mark = self._stop()
        self._at_mark()

    def _stop(self) -> int:
        """The number of steps beyond which something must be done."""
        return min(self._next_mark, self._progress_at + self._barren_max, self.limits.steps_max)


class SharedBudget:
    """The budget of all searches of single trees in one batch of boots. The search of each tree has some steps of its own, so
    that no query uses up the steps of another. A tree that needs more takes them from `steps_shared`.
    """

    def __init__(self, steps_per_tree: int, steps_shared: int, bytes_max: int) -> None:
        self._steps_per_tree = steps_per_tree
        self.steps_shared = steps_shared
        self._bytes_max = bytes_max

    def for_a_tree(self, slots: int) -> Budget:
        # One tree may take half of what is left, so the next tree still has some.
        steps_max = self._own(slots) + self.steps_shared // 2
        return Budget(SearchLimits(steps_max=steps_max, bytes_max=self._bytes_max))

    def settle(self, budget: Budget, slots: int) -> None:
        self.steps_shared -= min(self.steps_shared, max(0, budget.steps - self._own(slots)))

    def _own(self, slots: int) -> int:
        """The steps that the search of one tree always has: enough if each part of the query (slot) gets the first provider
        tried. The search compares each slot with all others, so the steps grow with the square of their number.
        """
        return self._steps_per_tree + _STEPS_PER_PAIR * slots * slots
