"""`moor top`: the rates between heartbeats, and which rows and columns its tabs show."""

from datetime import UTC, datetime, timedelta

from msgspec import structs

from bus.messages.cloud import Overview, WorkerAlive, WorkerHeard
from moor.overview.gathering import Rates
from moor.overview.top_command import ANY_STATE, Lists, TabRows, filled
from moor.tables import Columns

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def heard(
    after_s: float, handled: int, *, refused: int = 0, worker: str = "scheduler-1", queue: str = "q"
) -> WorkerHeard:
    beat = WorkerAlive(
        cell="cell0",
        worker=worker,
        role="scheduler",
        release="0.1.0",
        started_at=NOON,
        told_at=NOON + timedelta(seconds=after_s),
        handled={queue: handled},
        counts={"claims.claimed": handled, "claims.does_not_fit": refused},
    )
    return WorkerHeard(beat=beat, heard_at=NOON + timedelta(seconds=after_s), life="up")


def taken(*overviews: tuple[WorkerHeard, ...]) -> Rates:
    rates = Rates()
    for workers in overviews:
        rates.take(Overview(made_at=NOON, scheduler="scheduler-1", workers=workers))
    return rates


def shown(rates: Rates) -> list[tuple[str, float, int, int]]:
    return [(each.queue, each.per_s, each.workers, each.handled) for each in rates.by_queue()]


def test_the_rate_is_that_between_the_last_two_heartbeats() -> None:
    rates = taken((heard(0, 100),), (heard(5, 150, refused=10),))

    assert shown(rates) == [("q", 10.0, 1, 150)]
    assert rates.conflicts_per_s() == 2.0


def test_an_overview_without_a_new_heartbeat_keeps_the_rate() -> None:
    rates = taken((heard(0, 100),), (heard(5, 150),), (heard(5, 150),))

    assert shown(rates) == [("q", 10.0, 1, 150)]


def test_a_first_heartbeat_has_no_rate_and_workers_of_a_queue_are_summed() -> None:
    one, other = heard(0, 100), heard(0, 30, worker="scheduler-2")

    assert shown(taken((one,))) == [("q", 0.0, 1, 100)]
    assert shown(taken((one, other), (heard(5, 110), heard(5, 40, worker="scheduler-2")))) == [
        ("q", 4.0, 2, 150)
    ]


def test_a_heartbeat_that_several_schedulers_heard_counts_once() -> None:
    again = structs.replace(heard(5, 150), heard_at=NOON + timedelta(seconds=5.002))

    assert shown(taken((heard(0, 100),), (heard(5, 150),), (again,))) == [("q", 10.0, 1, 150)]


def test_a_worker_that_is_silent_has_no_rate_any_more() -> None:
    silent = structs.replace(heard(5, 150), life="down")

    assert shown(taken((heard(0, 100),), (heard(5, 150),), (silent,))) == [("q", 0.0, 1, 150)]


def test_a_worker_that_is_gone_counts_no_more_and_idle_queues_are_left_out() -> None:
    idle = heard(5, 0, worker="other", queue="idle")

    assert shown(taken((heard(0, 100), idle), (idle,))) == []


def test_states_that_no_instance_has_are_skipped() -> None:
    lists = Lists(None, None)  # type: ignore[arg-type]  # it asks nothing here
    seen = []
    for _ in range(4):
        lists.next_state({"error", "waiting"})
        seen.append(lists.state)

    assert seen == ["waiting", "error", ANY_STATE, "waiting"]


def test_columns_in_which_nothing_is_are_left_out_unless_there_is_no_row() -> None:
    columns = Columns[tuple[str, str]]({"a": lambda row: row[0], "b": lambda row: row[1]})

    headings, cells = filled(TabRows([("1", ""), ("2", "")], columns, str))
    assert (headings, [[str(each) for each in row] for row in cells]) == (["a"], [["1"], ["2"]])
    assert filled(TabRows([], columns, str)) == (["a", "b"], [])
