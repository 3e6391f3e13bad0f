"""Limits of the search for counter-examples: the same examples each time, within seconds."""

from collections.abc import Collection

from hypothesis import HealthCheck, Phase, settings

# `make proof` tries three times as many examples as `make test` (tests/conftest.py).
BOUNDED = settings(
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    # Examples are small worlds, which take longer to generate than numbers.
    suppress_health_check=[HealthCheck.too_slow],
)

# The longest of the proof takes two minutes of a processor that it has alone.
TIMEOUT_S = 900


def times(more: int) -> settings:
    """So many times the examples of other properties."""
    return settings(BOUNDED, max_examples=more * settings().max_examples)


# For properties on which all others rest.
THOROUGH = times(2)


def share(of_proof: int) -> int:
    """How often the examples meet at least what those of the proof meet so often."""
    return of_proof * settings().max_examples // settings.get_profile("proof").max_examples


def not_reached(wanted: Collection[object], met: Collection[object]) -> list[object]:
    """What the examples must reach together, and did not. The few of `make test` may miss a fifth of it."""
    missing = [each for each in wanted if each not in met]
    may_miss = 0 if settings().max_examples >= settings.get_profile("proof").max_examples else len(wanted) / 5
    return missing if len(missing) > may_miss else []
