"""Counts the notes of shadow mode: how often both chose alike, and why not. Pure."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from statistics import median

from msgspec import Struct

from scheduler_worker.nova_shadow.core.notes import VERDICTS, ShadowNote, ShadowVerdict

# Texts of Nova are grouped by their beginning.
GROUPED_BY_CHARACTERS = 60
MANY = "several instances of a request"
ALIKE: tuple[ShadowVerdict, ...] = ("same", "as_good", "neither")


class VerdictCount(Struct, frozen=True):
    """`share` is that of all that were compared; None for those that were not."""

    verdict: ShadowVerdict
    instances: int
    share: float | None


class ReasonCount(Struct, frozen=True):
    """How many instances got a verdict because of one weigher, one filter or one text; and one of them, with its reason."""

    verdict: ShadowVerdict
    because: str
    instances: int
    example: str


class ShadowReport(Struct, frozen=True):
    """`first_at` and `last_at` are when the first and the last request came; None without any. `alike` is the share of those that were
    compared in which both chose the same host, one as good, or none. `seen_after_s` is the median of the times after which Nova's
    choices were seen.
    """

    first_at: datetime | None
    last_at: datetime | None
    requests: int
    instances: int
    compared: int
    alike: float | None
    verdicts: tuple[VerdictCount, ...]
    reasons: tuple[ReasonCount, ...]
    seen_after_s: float | None
    unreadable: int = 0


def report_on(notes: Sequence[ShadowNote], unreadable: int = 0) -> ShadowReport:
    """`notes` are in the order of their times."""
    counts = Counter(each.verdict for each in notes)
    compared = len(notes) - counts["not_compared"]
    seen = [each.nova_after_s for each in notes if each.nova_after_s is not None]
    return ShadowReport(
        first_at=notes[0].at if notes else None,
        last_at=notes[-1].at if notes else None,
        requests=len({(each.request_id, each.at) for each in notes}),
        instances=len(notes),
        compared=compared,
        alike=sum(counts[each] for each in ALIKE) / compared if compared else None,
        verdicts=tuple(
            VerdictCount(verdict, counts[verdict], _share(verdict, counts[verdict], compared))
            for verdict in VERDICTS
        ),
        reasons=_reasons(notes),
        seen_after_s=median(seen) if seen else None,
        unreadable=unreadable,
    )


def reason_of(note: ShadowNote) -> str:
    """Why the verdict is as it is, in words."""
    match note.verdict:
        case "only_nova":
            return "; ".join(filter(None, (note.reason, note.refusal)))
        case "only_ours":
            return note.nova_reason
        case "neither":
            return f"{note.refusal}; Nova: {note.nova_reason}"
        case _:
            return note.reason


def _share(verdict: ShadowVerdict, instances: int, compared: int) -> float | None:
    return None if verdict == "not_compared" or not compared else instances / compared


def _because(note: ShadowNote) -> str:
    """What the instances of one verdict are counted by; empty if nothing more is to be said."""
    match note.verdict:
        case "nova_worse" | "nova_better":
            return f"weigher {note.weighed[0].weigher}" if note.weighed else MANY
        case "filtered":
            return f"filter {note.filter}"
        case "only_nova":
            return f"filter {note.filter}" if note.filter else _beginning(note.refusal)
        case "only_ours":
            return _beginning(note.nova_reason)
        case "not_compared":
            return _beginning(note.reason)
        case _:
            return ""


def _reasons(notes: Sequence[ShadowNote]) -> tuple[ReasonCount, ...]:
    grouped: dict[tuple[ShadowVerdict, str], list[ShadowNote]] = {}
    for each in notes:
        if because := _because(each):
            grouped.setdefault((each.verdict, because), []).append(each)
    counted = [
        # The last one: an operator can still look at its instance.
        ReasonCount(verdict, because, len(some), f"{some[-1].instance}: {reason_of(some[-1])}")
        for (verdict, because), some in grouped.items()
    ]
    return tuple(sorted(counted, key=_in_order))


def _in_order(count: ReasonCount) -> tuple[int, int, str]:
    return VERDICTS.index(count.verdict), -count.instances, count.because


def _beginning(text: str) -> str:
    return text if len(text) <= GROUPED_BY_CHARACTERS else f"{text[:GROUPED_BY_CHARACTERS]}..."
