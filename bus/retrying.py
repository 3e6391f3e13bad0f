"""Retry work after a transient error. There are few tries and short pauses, since a caller waits."""

import random
from collections.abc import Callable

import tenacity

from bus.errors import Transient
from bus.pauses import Chance, drawn, grown

RETRY_DELAY_S_FIRST = 0.005
RETRY_DELAY_S_MAX = 0.5


def retrying(
    tries_max: int,
    *,
    delay_s_first: float = RETRY_DELAY_S_FIRST,
    delay_s_max: float = RETRY_DELAY_S_MAX,
    chance: Chance = random,
) -> tenacity.AsyncRetrying:
    """A loop that retries on `Transient`, with growing pauses. After a broken connection, the next try gets a new one."""
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(Transient),
        wait=growing_waits(delay_s_first, delay_s_max, chance),
        stop=tenacity.stop_after_attempt(tries_max),
        reraise=True,
    )


def growing_waits(
    first_s: float, max_s: float, chance: Chance = random
) -> Callable[[tenacity.RetryCallState], float]:
    """The pauses of a loop of tenacity. They begin at 0, so that callers that collided are spread as far as can be."""

    def wait_s(state: tenacity.RetryCallState) -> float:
        return drawn(grown(first_s, max_s, state.attempt_number), chance, least=0.0)

    return wait_s
