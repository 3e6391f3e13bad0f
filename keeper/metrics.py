"""The metrics of keepers."""

from kit.metrics import Metric

MOVEMENTS = Metric(
    "moor_movements",
    "counter",
    "Movements that this keeper has granted, or has seen end: `granted`, `done`, `failed` (a try), `given_up`, `withdrawn`.",
    ("what",),
)
CAMPAIGNS = Metric(
    "moor_campaigns_held",
    "gauge",
    "Campaigns that this keeper works on. Of several keepers, each works on others.",
)
QUESTIONS = Metric(
    "moor_questions_open",
    "gauge",
    "Questions that keepers have asked, and that nobody has answered yet. Each keeper counts all.",
)
RESTARTS = Metric(
    "moor_restarts",
    "counter",
    "Guests that died, which this keeper has had `started` again, or which it has `given_up` since that was done often enough.",
    ("what",),
)
BROKEN = Metric(
    "moor_policies_broken",
    "gauge",
    "Policies that this keeper cannot follow, such as those whose fence it does not have.",
)
METRICS = (MOVEMENTS, CAMPAIGNS, QUESTIONS, RESTARTS, BROKEN)
