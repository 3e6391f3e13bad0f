"""The stages of a boot, in their order, and by which histogram of which worker each is measured.

Workers tell in their heartbeats how long these took, and schedulers show them in overviews. The metrics themselves are in the
`metrics.py` of the rooms.
"""

from collections.abc import Iterable

from msgspec import Struct

from bus.measuring import Histogram


class Stage(Struct, frozen=True):
    """`label` is the beginning of the first label of what counts, such as the type of a question."""

    name: str
    role: str
    metric: str
    label: str = ""


# A stage "boot" is the whole way: from the acceptance of a request to its instance being active.
STAGES = (
    Stage("accept", "scheduler", "moor_accept_seconds"),
    Stage("choose", "scheduler", "moor_choice_seconds"),
    Stage("claim", "scheduler", "moor_question_seconds", "claim"),
    Stage("place", "conductor", "moor_place_seconds"),
    Stage("spawn", "conductor", "moor_host_build_seconds"),
    Stage("boot", "conductor", "moor_boot_seconds"),
)


def stage_counts(role: str, histograms: Iterable[Histogram]) -> dict[str, tuple[int, ...]]:
    """For each stage that a worker of this role measures: how many durations fell into each bucket since its start, without
    the empty buckets at the end.
    """
    known = [*histograms]
    found = {}
    for stage in STAGES:
        if stage.role != role:
            continue
        observed = [
            each.counts
            for histogram in known
            if histogram.metric.name == stage.metric
            for labels, each in histogram.by_labels.items()
            if not stage.label or labels[0].startswith(stage.label)
        ]
        counts = [sum(bucket) for bucket in zip(*observed, strict=True)]
        while counts and not counts[-1]:
            counts.pop()
        if counts:
            found[stage.name] = tuple(counts)
    return found
