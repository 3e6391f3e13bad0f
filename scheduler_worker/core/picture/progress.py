"""How up to date the picture is.

Two values say it: a position in the feed and a cursor of placement's database, up to which the picture has every change.
Messages of the feed advance both, as long as they follow each other without a gap. A reading of the database sets both to
the moment when it began. Messages that arrive while a reading is under way form a separate run. When the reading has
reached the beginning of that run, nothing is missing between them, and the end of the run counts.
"""

from bus.messages.placement import LogPosition

# Placement notes how far it has published after the broker has confirmed it. So the feed may be ahead of that note, but not
# by more messages than this.
UNMARKED_MAX = 1000


class Progress:
    def __init__(self) -> None:
        # Empty: the database was not read yet.
        self.cursor = ""
        self._known: LogPosition | None = None
        self._first: LogPosition | None = None
        self._last: LogPosition | None = None
        # The last cursor of the run, and its position.
        self._told: tuple[LogPosition, str] | None = None

    def heard(self, at: LogPosition, cursor: str) -> bool:
        """The picture has this message of the feed. Returns whether a message before it was missed."""
        last = self._last
        if last is None or last.term != at.term or at.position > last.position + 1:
            self._first, self._last, self._told = at, at, None
        elif at.position <= last.position:
            # A repeated message.
            return False
        self._last = at
        if cursor:
            self._told = at, cursor
        return not self._join() and self._known is not None

    @property
    def heard_up_to(self) -> LogPosition | None:
        """The last message of the feed that was heard."""
        return self._last

    def read(self, published: LogPosition, cursor: str, heard: LogPosition | None = None) -> None:
        """The database was read as of this cursor; that includes every change published up to there. `heard` is the last
        message that was heard before it was asked. If placement is far from there, the message was false, and so is
        the run that it belongs to.
        """
        self._known, self.cursor = published, cursor
        if (
            heard is not None
            and heard.term == published.term
            and heard.position > published.position + UNMARKED_MAX
        ):
            self._first = self._last = self._told = None
        self._join()

    def _join(self) -> bool:
        """Continue at the end of the run, if it begins at or before the known position."""
        known, first, last = self._known, self._first, self._last
        if known is None or first is None or last is None:
            return False
        if first.term != known.term or first.position > known.position + 1:
            return False
        if self._told is not None and self._told[0] > known:
            self.cursor = self._told[1]
        self._known = max(known, last)
        return True
