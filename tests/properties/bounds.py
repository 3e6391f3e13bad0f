"""Limits of the search for counter-examples: the same examples each time, within seconds."""

from hypothesis import HealthCheck, Phase, settings

from tests.parts import only_a_part

BOUNDED = settings(
    # The first half of them in `make test`.
    max_examples=60 if only_a_part() else 120,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    # Examples are small worlds, which take longer to generate than numbers.
    suppress_health_check=[HealthCheck.too_slow],
)

# For properties on which all others rest.
THOROUGH = settings(BOUNDED, max_examples=250)
