"""What one search may cost. It is counted in steps and bytes, never in time: the same question costs the same everywhere.

A step is about one look at one slot, place or line of text, or at a few dozen rows of a column: a tenth of a microsecond
to a few tenths. Bytes are what the tables of a search hold, by estimates that err upwards. Every loop of the search whose
length a question decides spends steps, and every table that grows with it holds bytes.

A budget may have a mark: at each multiple of so many steps it calls `at_mark`, which may let others run. Between
two marks nobody else does.
"""

from collections.abc import Callable

from msgspec import Struct

from bus.messages.candidates import TooCostly

# Rows of a column that one step looks at.
ROWS_PER_STEP = 64
_STEPS_PER_PAIR = 16


class SearchLimits(Struct, frozen=True):
    """The default for steps is some ten times what the hardest question took that OpenStack's Placement answers within
    ten seconds (tests/conformance/test_candidates_in_ten_seconds.py). At about two million steps a second it is
    spent within half a minute, in turns with everything else that the process does.
    """

    steps_max: int = 50_000_000
    bytes_max: int = 256 * 1024 * 1024
    # What is written of an answer: several times what Placement could write in ten seconds.
    answer_bytes_max: int = 128 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("steps_max", "bytes_max", "answer_bytes_max"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be more than 0")

    @property
    def memo_bytes_max(self) -> int:
        """A memo of dead ends saves steps, and a search is right without: a full one takes no more."""
        return self.bytes_max // 4


DEFAULT_LIMITS = SearchLimits()


class CutError(Exception):
    """The search would cost more than it may. Whoever gave the budget turns this into its verdict."""

    def __init__(self, verdict: TooCostly) -> None:
        super().__init__(f"{verdict.spent} {verdict.what}, and the budget is {verdict.budget}")
        self.verdict = verdict


class Budget:
    """Of one search, from its start to the end of its answer."""

    __slots__ = ("_at_mark", "_mark", "_mark_every", "answer_bytes", "held", "held_most", "limits", "steps")

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
        self._mark = limits.steps_max if at_mark is None else min(mark_every, limits.steps_max)

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > self._mark:
            self._come_to_mark()

    def hold(self, size: int) -> None:
        self.held += size
        if self.held > self.held_most:
            self.held_most = self.held
            if self.held > self.limits.bytes_max:
                raise CutError(TooCostly(what="bytes", spent=self.held, budget=self.limits.bytes_max))

    def let_go(self, size: int) -> None:
        self.held -= size

    def tell(self, size: int) -> None:
        """So many bytes more of the answer: to be said before they are written."""
        self.answer_bytes += size
        if self.answer_bytes > self.limits.answer_bytes_max:
            raise CutError(
                TooCostly(what="answer_bytes", spent=self.answer_bytes, budget=self.limits.answer_bytes_max)
            )

    def _come_to_mark(self) -> None:
        if self.steps > self.limits.steps_max:
            raise CutError(TooCostly(what="steps", spent=self.steps, budget=self.limits.steps_max))
        assert self._at_mark is not None, "without a mark only the limit is one"
        self._mark = min(self.steps + self._mark_every, self.limits.steps_max)
        self._at_mark()


class SharedBudget:
    """Of all searches of one batch. Each tree has a few steps of its own, so that no question starves another; what it needs
    beyond them comes out of one pool.
    """

    def __init__(self, steps_per_tree: int, steps_shared: int, bytes_max: int) -> None:
        self._steps_per_tree = steps_per_tree
        self.steps_shared = steps_shared
        self._bytes_max = bytes_max

    def for_a_tree(self, slots: int) -> Budget:
        # One tree may take half of what is left: the next one still finds something.
        steps_max = self._own(slots) + self.steps_shared // 2
        return Budget(SearchLimits(steps_max=steps_max, bytes_max=self._bytes_max))

    def settle(self, budget: Budget, slots: int) -> None:
        self.steps_shared -= min(self.steps_shared, max(0, budget.steps - self._own(slots)))

    def _own(self, slots: int) -> int:
        """Enough for a tree where every slot finds its place at once: each looks at all that are open."""
        return self._steps_per_tree + _STEPS_PER_PAIR * slots * slots
