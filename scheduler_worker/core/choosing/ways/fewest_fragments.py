"""A way is better if it takes from few providers, and from those with the least room: large rooms stay whole."""

import numpy as np

from placement_worker.core.candidates.columns import Floats
from scheduler_worker.core.choosing.needs import Needs
from scheduler_worker.core.choosing.ways.judge import Ways


class FewestFragments:
    name = "fewest fragments"

    def reads(self, needs: Needs) -> bool:
        """Plain requests take the first way, which costs them nothing."""
        return bool(needs.groups)

    def judge(self, ways: Ways, _needs: Needs) -> Floats:
        left = np.zeros(len(ways))
        columns = [column for column, amounts in enumerate(ways.amounts) if amounts]
        for column in columns:
            for resource, amount in ways.amounts[column].items():
                room = ways.free(resource, column) - amount
                parts = len(columns) * len(ways.amounts[column])
                left += room / np.maximum(ways.capacity(resource, column), 1) / parts
        # One provider fewer counts more than any room that is left.
        return -(len(columns) + left)
