"""Retry work after a transient error. There are few tries and short pauses, since a caller waits."""

import tenacity

from bus.errors import Transient

RETRY_DELAY_S_FIRST = 0.005
RETRY_DELAY_S_MAX = 0.5


def retrying(
    tries_max: int, *, delay_s_first: float = RETRY_DELAY_S_FIRST, delay_s_max: float = RETRY_DELAY_S_MAX
) -> tenacity.AsyncRetrying:
    """A loop that retries on `Transient`, with growing pauses. After a broken connection, the next try gets a new one."""
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(Transient),
        wait=tenacity.wait_random_exponential(multiplier=delay_s_first, max=delay_s_max),
        stop=tenacity.stop_after_attempt(tries_max),
        reraise=True,
    )
