"""`moor shadow report`: compares the choices of this scheduler in shadow mode with those of Nova."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from bus.clock import now
from moor.options import Output, fail, option_of, say, tuned, wants_document, wrong_value
from moor.shadow.counting import ReasonCount, ShadowReport, VerdictCount, reason_of, report_on
from moor.showing import print_all, print_json, time_in_words
from moor.tables import Columns, print_table
from moor.worker_settings import NOVA_SHADOW
from scheduler_worker.nova_shadow.core.notes import VERDICTS, ShadowNote, ShadowVerdict
from scheduler_worker.nova_shadow.notes_file import NotesRead, read_notes

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Shadow mode: what this scheduler would have chosen for a Nova, beside what Nova chose.",
)

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


@app.callback()
def shadow() -> None:
    """Only a group: `report` is to be named."""


@app.command()
def report(
    file: Annotated[str | None, option_of(NOVA_SHADOW, "file", "--file", metavar="FILE")] = None,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help="Only requests since then: 30m, 24h, 7d, or a time such as 2026-11-25T10:00. Default: all that are kept.",
        ),
    ] = "",
    verdicts: Annotated[
        list[str] | None,
        typer.Option("--verdict", metavar="VERDICT", help=f"Only these, repeatable: {', '.join(VERDICTS)}."),
    ] = None,
    *,
    listed: Annotated[
        bool, typer.Option("--list", help="List the instances, each with its verdict.")
    ] = False,
    _output: Output = None,
) -> None:
    """Count how often Nova chose the same host as this scheduler would have, one as good, a worse or a better one, and why.

    It reads the file of notes that `moor run nova-scheduler --shadow` writes, on the same machine.
    """
    with wrong_value():
        after = time_in(since, now()) if since else None
        wanted = verdicts_in(verdicts or ())
    path = Path(tuned(NOVA_SHADOW, file=file).file)
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
