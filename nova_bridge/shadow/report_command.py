"""`moor nova shadow`: compares the choices of this scheduler in shadow mode with those of Nova."""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Annotated

from msgspec import Struct

from kit.clock import now
from moor.flags import option
from moor.options import Output, fail, option_of, say, tuned, wants_document, wrong_value
from moor.showing import print_all, print_json, time_in_words
from moor.tables import Columns, print_table
from nova_bridge.settings import NOVA
from nova_bridge.shadow.notes import VERDICTS, NotesRead, ShadowNote, ShadowVerdict, read_notes

# Counts the notes of shadow mode: how often both chose alike, and why not. Pure.


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


MEANINGS: dict[ShadowVerdict, str] = {
    "same": "both chose the same host",
    "as_good": "Nova's host is as good by our weighers",
    "nova_worse": "Nova's host is worse by our weighers",
    "nova_better": "Nova's host is better by our weighers",
    "filtered": "our filters refuse the host that Nova chose",
    "only_nova": "Nova found a host, and we did not",
    "only_ours": "we found a host, and Nova did not",
    "neither": "neither found a host",
    "not_compared": "not compared",
}
_AGO = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def report(
    file: Annotated[str | None, option_of(NOVA, "shadow_file", "--file", metavar="FILE")] = None,
    since: Annotated[
        str,
        option(
            metavar="TIME",
            show_default=False,
            help="Only requests since then: 30m, 24h, 7d, or a time such as 2026-11-25T10:00. Default: all that are kept.",
        ),
    ] = "",
    verdicts: Annotated[
        list[str] | None,
        option("--verdict", metavar="VERDICT", help=f"Only these, repeatable: {', '.join(VERDICTS)}."),
    ] = None,
    *,
    listed: Annotated[bool, option("--list", help="List the instances, each with its verdict.")] = False,
    _output: Output = None,
) -> None:
    """Count how often Nova chose the same host as this scheduler would have, one as good, a worse or a better one, and why.

    It reads the file of notes that `moor run nova-scheduler --shadow` writes, on the same machine.
    """
    with wrong_value():
        after = time_in(since, now()) if since else None
        wanted = verdicts_in(verdicts or ())
    path = Path(tuned(NOVA, shadow_file=file).shadow_file)
    read = _read(path, after)
    notes = [each for each in read.notes if each.verdict in wanted]
    if listed:
        print_all(notes, NOTES, "no notes")
        return
    found = report_on(notes, read.unreadable)
    if wants_document():
        print_json(found)
    else:
        print_report(found)


def time_in(text: str, at: datetime) -> datetime:
    """The time that this text names. Raises ValueError."""
    try:
        if (ago := _AGO.fullmatch(text)) is not None:
            return at - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"--since is {text!r}, must be a time ago (30m, 24h, 7d) or a time (2026-11-25T10:00)"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def verdicts_in(texts: Sequence[str]) -> Sequence[str]:
    """These verdicts; all if none is named. Raises ValueError."""
    for each in texts:
        if each not in VERDICTS:
            raise ValueError(f"--verdict is {each!r}, must be one of {', '.join(VERDICTS)}")
    return texts or VERDICTS


def print_report(found: ShadowReport) -> None:
    if found.unreadable:
        say(f"{found.unreadable:,} lines of the file are no notes, and are left out", "yellow")
    if found.first_at is None or found.last_at is None:
        say("no notes")
        return
    say(
        f"{found.instances:,} instances of {found.requests:,} requests from {time_in_words(found.first_at)} to "
        f"{time_in_words(found.last_at)}, {found.compared:,} compared"
    )
    if found.alike is not None:
        say(f"alike, that is the same host, one as good, or none for both: {100 * found.alike:.1f} %")
    if found.seen_after_s is not None:
        say(f"half of Nova's choices were seen within {found.seen_after_s:.2g} s")
    say("")
    print_table([each for each in found.verdicts if each.instances], COUNTS)
    if found.reasons:
        say("\nreasons, each with the last instance that had it:")
        print_table(found.reasons, REASONS)


def _read(path: Path, after: datetime | None) -> NotesRead:
    try:
        return read_notes(path, after)
    except FileNotFoundError:
        fail(
            f"there is no file {str(path)!r}: `moor run nova-scheduler --shadow` writes it, as MOOR_NOVA_SHADOW_FILE says"
        )
    except OSError as problem:
        fail(f"the notes in {str(path)!r} cannot be read: {problem.strerror or problem}")


COUNTS = Columns[VerdictCount](
    {
        "verdict": lambda each: each.verdict,
        "meaning": lambda each: MEANINGS[each.verdict],
        "instances": lambda each: f"{each.instances:,}",
        "share": lambda each: "" if each.share is None else f"{100 * each.share:.1f} %",
    },
    prose=("meaning",),
)
REASONS = Columns[ReasonCount](
    {
        "verdict": lambda each: each.verdict,
        "because": lambda each: each.because,
        "instances": lambda each: f"{each.instances:,}",
        "example": lambda each: each.example,
    },
    prose=("because", "example"),
)
NOTES = Columns[ShadowNote](
    {
        "at": lambda each: time_in_words(each.at),
        "instance": lambda each: str(each.instance),
        "verdict": lambda each: each.verdict,
        "ours": lambda each: each.ours,
        "nova": lambda each: each.nova,
        "reason": reason_of,
    },
    prose=("reason",),
)
