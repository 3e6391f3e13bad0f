"""A way is better if it takes from few providers, and from those with the least room: large rooms stay whole."""

from scheduler_worker.core.choosing.needs import Needs
from scheduler_worker.core.choosing.ways.judge import Way


class FewestFragments:
    may_strike = False

    def reads(self, needs: Needs) -> bool:
        """Judge only requests with granular groups: plain requests take the first way, at no cost."""
        return bool(needs.groups)

    def judge(self, way: Way, _needs: Needs) -> float:
        left = way.left
        # One provider fewer counts more than any room that is left.
        return -(len(left) + sum(left) / len(left))
