"""How far the search for counter-examples goes: the same examples every time, within seconds."""

from hypothesis import HealthCheck, Phase, settings

BOUNDED = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    # Examples are small worlds: to draw one takes longer than a number.
    suppress_health_check=[HealthCheck.too_slow],
)

# For what everything else rests on.
THOROUGH = settings(BOUNDED, max_examples=250)
