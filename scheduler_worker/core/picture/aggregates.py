"""The metadata of aggregates, and answers that follow from it for each set of aggregates.

Many hosts are in the same aggregates. So a host's column has the code of its set, a question about metadata is decided
once for each set, and the answer of a host is looked up by its code. Answers are kept until some metadata changes.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bus.message import AggregateId
from bus.messages.aggregates import Aggregate
from scheduler_worker.core.aggregates.metadata import MULTIPLIER, TENANTS, TRAIT, ZONE, least_of, value_of
from scheduler_worker.core.picture.columns import Codes

Judge = Callable[[tuple[Aggregate, ...]], Any]
# Each answer has an entry for each set; requests of many projects ask many questions.
ANSWERS_MAX = 1_000


class HostAggregates:
    """The aggregates that the picture knows, and the sets of them that hosts are in. `keys` are the metadata keys of
    all aggregates, so a plugin whose key is not among them need not ask.
    """

    def __init__(self) -> None:
        self._sets = Codes[tuple[AggregateId, ...]]()
        self._sets.code(())
        self._known: dict[AggregateId, Aggregate] = {}
        # By the code of the set, as far as they were asked for since the last change.
        self._members: list[tuple[Aggregate, ...]] = []
        self._answers: dict[Hashable, NDArray[Any]] = {}
        self._read_keys()

    def code_of(self, aggregates: Sequence[AggregateId]) -> int:
        """The code of the set of these aggregates, 0 for none."""
        return self._sets.code(tuple(sorted(aggregates))) if aggregates else 0

    def put(self, aggregates: Iterable[Aggregate]) -> set[AggregateId]:
        """Merge these aggregates; an older state changes nothing. Returns the ids of those that changed."""
        news = [
            each
            for each in aggregates
            if (known := self._known.get(each.id)) is None or known.sequence < each.sequence
        ]
        self._known |= {each.id: each for each in news}
        return self._changed({each.id for each in news})

    def remove(self, deleted: Aggregate) -> set[AggregateId]:
        known = self._known.get(deleted.id)
        if known is None or known.sequence > deleted.sequence:
            return set()
        del self._known[deleted.id]
        return self._changed({deleted.id})

    def all(self) -> list[Aggregate]:
        return sorted(self._known.values(), key=lambda each: each.name)

    def of_set(self, code: int) -> tuple[Aggregate, ...]:
        """The aggregates of a set that have metadata."""
        for number in range(len(self._members), len(self._sets.names)):
            ids = self._sets.names[number]
            self._members.append(tuple(self._known[each] for each in ids if each in self._known))
        return self._members[code]

    def sets_with(self, aggregates: set[AggregateId]) -> list[int]:
        """The codes of the sets that contain one of these aggregates."""
        return [code for code, ids in enumerate(self._sets.names) if not aggregates.isdisjoint(ids)]

    def ids_of_set(self, code: int) -> tuple[AggregateId, ...]:
        return self._sets.names[code]

    def zone_of_set(self, code: int) -> str:
        """The zone of the hosts in these aggregates; empty if none names one.

        A scheduler refuses an order by which a host would be in two zones. If a write to placement does this all the
        same, every scheduler takes the zone of the aggregate whose name is first.
        """
        return value_of(ZONE, self.of_set(code)) if code else ""

    def answers(self, question: Hashable, judge: Judge) -> NDArray[Any]:
        """Ask the function `judge` about each set of aggregates. Returns its answers as an array in which a set's code is
        the index.

        The answers are cached under `question`. So a caller must use one `judge` for one question, always the same.
        """
        known = self._answers.get(question)
        if known is None or len(known) < len(self._sets.names):
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            sets = range(len(self._sets.names))
            known = self._answers[question] = np.array([judge(self.of_set(code)) for code in sets])
        return known

    def numbers(self, key: str, otherwise: float) -> NDArray[Any]:
        """For each set of aggregates that some host is in: the number that they have in their metadata under this key, the
        lowest if several have one, `otherwise` if none has. If the key is not among `keys`, nobody need ask.
        """
        return self.answers((key, otherwise), lambda aggregates: least_of(key, aggregates, otherwise))

    def _changed(self, aggregates: set[AggregateId]) -> set[AggregateId]:
        if aggregates:
            self._read_keys()
            self._members.clear()
            self._answers.clear()
        return aggregates

    def _read_keys(self) -> None:
        self.keys = frozenset(key for each in self._known.values() for key in each.metadata)
        # Is any aggregate for some projects only?
        self.name_tenants = any(key.startswith(TENANTS) for key in self.keys)
        # The traits that a request must require to get into some aggregate.
        self.isolating_traits = frozenset(
            key.removeprefix(TRAIT) for key in self.keys if key.startswith(TRAIT)
        )
        # Does any aggregate change how much a weigher counts?
        self.has_multipliers = any(key.endswith(MULTIPLIER) for key in self.keys)
