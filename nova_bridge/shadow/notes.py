"""A note of shadow mode: one instance of one request of Nova, with what this scheduler chose for it, and what Nova did."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Literal, get_args

import msgspec
from msgspec import Struct

from engine.choosing.planning import HostViews
from engine.flavors import InstanceId
from engine.inventories import ProviderId
from kit.errors import UNREADABLE

ShadowVerdict = Literal[
    # Both chose this host.
    "same",
    # Two hosts that are equal by our weighers.
    "as_good",
    # Nova's host is worse by our weighers, or better. Ours is the best unless host_subset_size is more than 1.
    "nova_worse",
    "nova_better",
    # Our filters refuse the host that Nova chose.
    "filtered",
    # Only one of both found a host, or neither did.
    "only_nova",
    "only_ours",
    "neither",
    "not_compared",
]
VERDICTS: tuple[ShadowVerdict, ...] = get_args(ShadowVerdict)


class WeighersCompared(Struct, frozen=True, omit_defaults=True):
    """What one weigher says of both hosts. `ahead` is by how much it puts our host before Nova's: 1 is the weigher's whole range."""

    weigher: str
    ours: float
    nova: float
    ahead: float


class ShadowNote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`ours` and `nova` are hosts; empty if there was none. `refusal` says why we had none, and `nova_reason` what is known of why
    Nova had none. `filter` is the filter of ours that refuses Nova's host. `reason` explains the verdict in words.
    """

    at: datetime
    request_id: str
    instance: InstanceId
    verdict: ShadowVerdict
    reason: str = ""
    project: str = ""
    flavor: str = ""
    # How many instances the request asked for.
    instances: int = 1
    is_forced: bool = False
    ours: str = ""
    alternates: tuple[str, ...] = ()
    hosts: int = 0
    qualified: int = 0
    refusal: str = ""
    nova: str = ""
    nova_reason: str = ""
    # After how long Nova's choice was seen.
    nova_after_s: float | None = None
    filter: str = ""
    weighed: tuple[WeighersCompared, ...] = ()


# Compares our choice for an instance with Nova's: the same host, one as good, a worse or a better one, or one that we refuse.
#
# Both hosts are judged by how they looked when the request came. Instances of one request are alike: which of them got which host does
# not count. A host that took instances of the same request before is judged with them.


# The filter that is named for a host which this scheduler does not know.
UNKNOWN_HOST = "known"
# A weigher that gives both hosts nearly the same is no reason.
_SAME = 1e-9


class HostsPaired(Struct, frozen=True):
    """Our host for an instance, and Nova's; None for no host. `..._taken` says how many instances of the request it had by then."""

    ours: ProviderId | None
    nova: ProviderId | None
    ours_taken: int = 0
    nova_taken: int = 0


class ChoicesCompared(Struct, frozen=True):
    verdict: ShadowVerdict
    filter: str = ""
    weighed: tuple[WeighersCompared, ...] = ()


def pair_hosts(
    ours: Sequence[ProviderId | None], novas: Sequence[ProviderId | None]
) -> Sequence[HostsPaired]:
    """For each instance a host of ours beside Nova's: the same one if we chose it for any instance of the request."""
    left = Counter(each for each in ours if each is not None)
    same: list[ProviderId | None] = []
    for nova in novas:
        if nova is not None and left[nova] > 0:
            left[nova] -= 1
            same.append(nova)
        else:
            same.append(None)
    others = _in_order(ours, left)
    paired = [host if host is not None else next(others, None) for host in same]
    return [
        HostsPaired(our, nova, ours_taken, nova_taken)
        for (our, ours_taken), (nova, nova_taken) in zip(_counted(paired), _counted(novas), strict=True)
    ]


def compare_choices(
    pair: HostsPaired, views: HostViews | None, without: HostViews | None = None
) -> ChoicesCompared:
    """`views` says how hosts looked when the request came; None if the request could not be read. `without` says the same without our
    choices for earlier requests: these took room that Nova may have left free. So a host is refused only if it is refused by both.
    """
    if pair.nova is not None and views is not None and without is not None:
        is_in_our_way = _refused_by(views, pair.nova) and not _refused_by(without, pair.nova)
        if is_in_our_way and (pair.ours is None or not _refused_by(without, pair.ours)):
            views = without
    if pair.nova is None:
        return ChoicesCompared("neither" if pair.ours is None else "only_ours")
    refused_by = "" if views is None else _refused_by(views, pair.nova)
    if pair.ours is None:
        return ChoicesCompared("only_nova", filter=refused_by)
    if pair.ours == pair.nova:
        return ChoicesCompared("same")
    if refused_by:
        return ChoicesCompared("filtered", filter=refused_by)
    assert views is not None, "a request for which a host was chosen was read"
    our_row, row = views.row_of(pair.ours), views.row_of(pair.nova)
    ours, nova = views.bands_below(our_row, pair.ours_taken), views.bands_below(row, pair.nova_taken)
    verdict: ShadowVerdict = "as_good" if ours == nova else "nova_worse" if ours > nova else "nova_better"
    return ChoicesCompared(verdict, weighed=_weighed(views, our_row, row))


def reason_in_words(
    compared: ChoicesCompared, pair: HostsPaired, name_of: Callable[[ProviderId], str], *, why_filtered: str
) -> str:
    """Why the verdict is this one, with the numbers. `why_filtered` is what the filter says of Nova's host; empty if it has nothing
    against it any more.
    """
    nova = "" if pair.nova is None else name_of(pair.nova)
    if compared.filter == UNKNOWN_HOST:
        return f"this scheduler does not know {nova}"
    if compared.filter:
        why = why_filtered or "it had when the request came, and has not any more"
        return f"{compared.filter} refuses {nova}: {why}"
    if compared.verdict not in ("nova_worse", "nova_better") or pair.ours is None:
        return ""
    ours = name_of(pair.ours)
    telling = [
        f"{each.weigher} {each.ours:g} on {ours}, {each.nova:g} on {nova} ({each.ahead:+.2f})"
        for each in compared.weighed
    ]
    if pair.ours_taken or pair.nova_taken:
        telling.append(
            f"with {pair.ours_taken} and {pair.nova_taken} instances of the same request there before"
        )
    return "; ".join(telling)


def _refused_by(views: HostViews, host: ProviderId) -> str:
    row = views.row_of(host)
    return UNKNOWN_HOST if row < 0 else views.filter_against(row)


def _weighed(views: HostViews, ours: int, nova: int) -> tuple[WeighersCompared, ...]:
    """The weighers that tell both hosts apart; first the one that counts most."""
    found = [
        WeighersCompared(our.weigher, our.weight, their.weight, our.part - their.part)
        for our, their in zip(views.weighed(ours), views.weighed(nova), strict=True)
        if abs(our.part - their.part) > _SAME
    ]
    return tuple(sorted(found, key=lambda each: (-abs(each.ahead), each.weigher)))


def _in_order(hosts: Sequence[ProviderId | None], left: Counter[ProviderId]) -> Iterator[ProviderId]:
    """The hosts that are left, in the order in which they were chosen."""
    for host in hosts:
        if host is not None and left[host] > 0:
            left[host] -= 1
            yield host


def _counted(hosts: Sequence[ProviderId | None]) -> Iterator[tuple[ProviderId | None, int]]:
    """Each host, with how often it came before."""
    seen = Counter[ProviderId]()
    for host in hosts:
        yield host, 0 if host is None else seen[host]
        if host is not None:
            seen[host] += 1


# Keeps the notes of shadow mode in two files, one line of JSON for each note: the present one, and the one before it.
#
# When the present one has half of the notes that are kept, or its first note is half as old as notes may become, it takes the place of
# the one before it. So the oldest notes go, and no file is ever rewritten.


log = logging.getLogger(__name__)

BEFORE = ".before"
# What one file of notes is for: some days of a cloud, and no register of what its users asked for.
NOTES_MAX, KEPT_S = 100_000, 14 * 86_400.0

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(ShadowNote)


class NotesFile:
    """Raises OSError if the files cannot be read or written."""

    def __init__(
        self, path: Path, *, notes_max: int = NOTES_MAX, kept_s: float = KEPT_S, clock: Callable[[], datetime]
    ) -> None:
        self._path = path
        self._lines_max = max(1, notes_max // 2)
        self._kept_s = kept_s
        self._clock = clock
        self._lines, self._first_at, self._is_torn = _measured(path)

    def add(self, notes: Sequence[ShadowNote]) -> None:
        for start in range(0, len(notes), self._lines_max):
            self._add(notes[start : start + self._lines_max])

    def _add(self, notes: Sequence[ShadowNote]) -> None:
        if self._is_full(len(notes)):
            self._path.replace(_before(self._path))
            self._lines, self._first_at, self._is_torn = 0, None, False
        # A line that a crash has cut off is ended first.
        start = b"\n" if self._is_torn else b""
        text = start + b"".join(_encode(each) + b"\n" for each in notes)
        with open_notes(self._path) as opened:
            opened.write(text)
        self._is_torn = False
        self._lines += len(notes)
        self._first_at = self._first_at or notes[0].at

    def _is_full(self, more: int) -> bool:
        if not self._lines:
            return False
        age_s = 0.0 if self._first_at is None else (self._clock() - self._first_at).total_seconds()
        return self._lines + more > self._lines_max or age_s > self._kept_s / 2

    def prune(self) -> None:
        """Delete the files whose last notes are too old."""
        for file in (_before(self._path), self._path):
            with suppress(FileNotFoundError):
                if self._clock().timestamp() - file.stat().st_mtime > self._kept_s:
                    file.unlink()
                    if file == self._path:
                        self._lines, self._first_at, self._is_torn = 0, None, False


class NotesRead(msgspec.Struct, frozen=True):
    """The notes, the oldest first, and how many lines could not be read."""

    notes: tuple[ShadowNote, ...]
    unreadable: int = 0


def open_notes(path: Path) -> BinaryIO:
    """The file, to write at its end. Only its owner reads what users asked for."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")


def read_notes(path: Path, since: datetime | None = None) -> NotesRead:
    """All notes of requests that came since then. Raises FileNotFoundError if there are none yet."""
    notes: list[ShadowNote] = []
    unreadable = 0
    files = [each for each in (_before(path), path) if each.exists()]
    if not files:
        raise FileNotFoundError(path)
    for file in files:
        for line in _lines_of(file):
            try:
                note = _decoder.decode(line)
            except UNREADABLE:
                unreadable += 1
                continue
            if since is None or note.at >= since:
                notes.append(note)
    return NotesRead(tuple(sorted(notes, key=lambda each: (each.at, each.instance))), unreadable)


def _before(path: Path) -> Path:
    return path.with_name(path.name + BEFORE)


def _lines_of(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        for line in opened:
            if stripped := line.strip():
                yield stripped


def _measured(path: Path) -> tuple[int, datetime | None, bool]:
    """How many lines the file has, the time of the first note, and whether its last line has no end."""
    if not path.exists():
        return 0, None, False
    lines, first_at, last = 0, None, b"\n"
    with path.open("rb") as opened:
        for line in opened:
            last = line
            lines += 1
            if first_at is None:
                try:
                    first_at = _decoder.decode(line).at
                except UNREADABLE:
                    log.warning("%s: a line is no note of shadow mode, and is left out", path)
    return lines, first_at, not last.endswith(b"\n")
