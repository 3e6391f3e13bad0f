"""The cells that this process knows: when a conductor of each was last heard, and which cells are down.

Only heartbeats of conductors that say they can work count. A cell is down when none of these came for the time
`down_after`. If none has come to this process yet, the time counts from the moment when it learned of the cell: by its
row, by its hosts, or by a conductor that cannot work. A cell of which nothing was ever heard is unknown, and counts as up.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from bus.messages.build import CellHeard, CellLife
from bus.messages.cloud import ConductorAlive, ConductorHeard
from engine.picture.picture import Picture
from scheduler_worker.store import KnownCell

# A cell's conductors may be started again and again: so many are remembered, the latest ones, and each for so long.
CONDUCTORS_MAX = 16
REMEMBERED_FOR = timedelta(minutes=15)


class _Cell(Struct):
    # The last heartbeat of a conductor that can work, and when the silence since then began to count.
    heard_at: datetime | None
    counts_from: datetime
    # Their last heartbeats, each with its time, the latest last.
    conductors: dict[str, tuple[datetime, ConductorAlive]]
    # Why it is down, as the last look has found; empty while it is up.
    told: str = ""
    # When it was last found down.
    down_at: datetime | None = None


class CellRegistry:
    def __init__(
        self,
        picture: Picture,
        down_after: timedelta,
        clock: Callable[[], datetime],
        *,
        is_avoided: bool = True,
        trouble_at: Callable[[str], str] = lambda _: "",
    ) -> None:
        """With `is_avoided`, nothing new is built in a cell that is down. `trouble_at` says what is wrong with the
        connection to a cell's own broker.
        """
        self._picture = picture
        self._down_after = down_after
        self._clock = clock
        self._is_avoided = is_avoided
        self._trouble_at = trouble_at
        self._cells: dict[str, _Cell] = {}

    def learn(self, rows: Iterable[KnownCell]) -> None:
        """Take over rows about cells, read at start or written by another worker."""
        now = self._clock()
        for row in rows:
            known = self._cells.setdefault(row.name, _Cell(None, now, {}))
            # This process may not hear a cell that another one hears: it believes its own ears.
            known.heard_at = row.heard_at if known.heard_at is None else max(known.heard_at, row.heard_at)

    def learn_names(self, names: Iterable[str]) -> None:
        """Learn of cells whose hosts were heard."""
        now = self._clock()
        for name in names:
            self._cells.setdefault(name, _Cell(None, now, {}))

    def hear(self, beat: ConductorAlive, speaks_for: str | None = None) -> None:
        """Note a conductor's heartbeat. If its sender may speak for one cell only (`speaks_for`), other cells are ignored."""
        now = self._clock()
        if speaks_for not in (None, beat.cell):
            return
        cell = self._cells.setdefault(beat.cell, _Cell(None, now, {}))
        # The latest is the last.
        cell.conductors.pop(beat.conductor, None)
        cell.conductors[beat.conductor] = now, beat
        for name, (heard_at, _) in [*cell.conductors.items()]:
            if len(cell.conductors) > CONDUCTORS_MAX or now - heard_at > REMEMBERED_FOR:
                del cell.conductors[name]
        if not beat.trouble:
            cell.heard_at = cell.counts_from = now
            if cell.told:
                self.look()

    def ended(self, conductor: str, name: str, speaks_for: str | None = None) -> None:
        """Forget a conductor of this cell that has ended as it should: nobody has to look after it."""
        cell = self._cells.get(name)
        if cell is not None and speaks_for in (None, name):
            cell.conductors.pop(conductor, None)

    def look(self) -> None:
        """Tell the picture which cells are down now, and why."""
        for name, cell in self._cells.items():
            cell.told = self._why_down(name, cell)
            if cell.told:
                cell.down_at = self._clock()
        if self._is_avoided:
            self._picture.put_cells_down(self.down)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._cells))

    @property
    def down(self) -> Mapping[str, str]:
        """The cells that were down at the last look, and why."""
        return {name: cell.told for name, cell in sorted(self._cells.items()) if cell.told}

    def heard(self, name: str) -> CellHeard:
        cell = self._cells.get(name)
        if cell is None:
            return CellHeard(cell=name, life="unknown")
        life: CellLife = "down" if cell.told else "up" if cell.heard_at else "unknown"
        return CellHeard(cell=name, life=life, heard_at=cell.heard_at, reason=cell.told)

    def excuses(self, name: str, for_long: timedelta) -> bool:
        """Do the silent hosts of this cell count as up, because the cell itself is down, or came back less than
        `for_long` ago? Never, if schedulers avoid cells that are down: then nothing is chosen there anyway.
        """
        cell = self._cells.get(name)
        if self._is_avoided or cell is None:
            return False
        if self._why_down(name, cell):
            cell.down_at = self._clock()
        return cell.down_at is not None and self._clock() - cell.down_at < for_long

    def conductors_of(self, name: str) -> tuple[ConductorHeard, ...]:
        """The conductors of this cell that were heard, the latest first."""
        cell = self._cells.get(name)
        return tuple(
            [
                ConductorHeard(
                    name=beat.conductor,
                    life="down" if beat.trouble or self._is_long_ago(heard_at) else "up",
                    heard_at=heard_at,
                    trouble=beat.trouble,
                )
                for heard_at, beat in reversed(cell.conductors.values() if cell else ())
                if self._clock() - heard_at <= REMEMBERED_FOR
            ]
        )

    def rows(self) -> list[KnownCell]:
        """When each cell was last heard, as rows to write: a worker that starts reads them."""
        return [
            KnownCell(name, cell.heard_at)
            for name, cell in sorted(self._cells.items())
            if cell.heard_at is not None
        ]

    def _why_down(self, name: str, cell: _Cell) -> str:
        if not self._is_long_ago(cell.counts_from):
            return ""
        last = "no conductor that can work was ever heard"
        if cell.heard_at is not None:
            last = f"no conductor that can work was heard since {cell.heard_at:%Y-%m-%d %H:%M:%S %Z}"
        said = [
            f"{beat.conductor} says: {beat.trouble}"
            for at, beat in reversed(cell.conductors.values())
            if beat.trouble and not self._is_long_ago(at)
        ]
        return "; ".join(filter(None, (last, *said[:1], self._trouble_at(name))))

    def _is_long_ago(self, at: datetime) -> bool:
        return self._clock() - at >= self._down_after
