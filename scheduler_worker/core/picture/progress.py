"""How far has the picture come?

Two things are known of it: a position in the feed up to which nothing was missed, and a cursor of placement's books up
to which nothing was. The feed moves both on, as long as its messages follow each other; a reading of the books moves
them to where it began. What was heard while a reading was under way stands in a run of its own, until the reading has
reached its beginning: then nothing lies between them, and the end of the run counts.
"""

from bus.messages.placement import LogPosition


class Progress:
    def __init__(self) -> None:
        # Empty: nothing was read yet.
        self.cursor = ""
        self._known: LogPosition | None = None
        self._first: LogPosition | None = None
        self._last: LogPosition | None = None
        # The last cursor of the run, and where it was said.
        self._told: tuple[LogPosition, str] | None = None

    def heard(self, at: LogPosition, cursor: str) -> bool:
        """This message of the feed is in the picture. Was something before it missed?"""
        last = self._last
        if last is None or last.term != at.term or at.position > last.position + 1:
            self._first, self._last, self._told = at, at, None
        elif at.position <= last.position:
            # Said again.
            return False
        self._last = at
        if cursor:
            self._told = at, cursor
        return not self._join() and self._known is not None

    def read(self, published: LogPosition, cursor: str) -> None:
        """The books were read, as of this cursor, and so what was published up to there."""
        self._known, self.cursor = published, cursor
        self._join()

    def _join(self) -> bool:
        """Does the run begin where we are, or before? Then we are at its end."""
        known, first, last = self._known, self._first, self._last
        if known is None or first is None or last is None:
            return False
        if first.term != known.term or first.position > known.position + 1:
            return False
        if self._told is not None and self._told[0] > known:
            self.cursor = self._told[1]
        self._known = max(known, last)
        return True
