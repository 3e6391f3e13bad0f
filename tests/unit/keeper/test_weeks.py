"""What keepers have done by themselves, week by week."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5

from msgspec import structs

from bus.messages.keeping import CampaignHost, CampaignId, CampaignState, CampaignWork, HostStage
from engine.goals import BalanceFigures
from engine.inventories import ProviderId
from keeper.core.weeks import week_of, weeks_of

# A Friday, in the first week of a year that began the day before.
FRIDAY = datetime(2027, 1, 1, 12, tzinfo=UTC)
BALANCE = CampaignState(
    id=CampaignId(UUID(int=1)),
    name="balance-cloud",
    work=CampaignWork(kind="balance", goal="even"),
    asked_at=FRIDAY,
    movements={"done": 7, "given_up": 1, "withdrawn": 2},
    before=BalanceFigures(spread=0.4),
    promised=BalanceFigures(spread=0.1),
    reached=BalanceFigures(spread=0.2),
)


def lost(number: int, stage: HostStage, at: datetime, took_s: float = 60, moved: int = 2) -> CampaignHost:
    return CampaignHost(
        id=ProviderId(uuid5(UUID(int=2), str(number))),
        host=f"h{number}",
        cell="c1",
        stage=stage,
        lost_at=at,
        ended_at=at + timedelta(seconds=took_s),
        moved=moved,
        stay=1,
    )


def test_hosts_count_in_the_week_in_which_they_fell_silent_and_balances_in_that_of_their_beginning() -> None:
    weeks = weeks_of(
        [BALANCE, structs.replace(BALANCE, reached=None, movements={})],
        [
            lost(1, "done", FRIDAY, 60),
            lost(2, "done", FRIDAY, 80),
            lost(3, "done", FRIDAY, 1000),
            lost(4, "failed", FRIDAY, moved=0),
            lost(5, "held", FRIDAY - timedelta(days=7), moved=0),
        ],
        FRIDAY - timedelta(weeks=2),
    )
    assert [each.week for each in weeks] == ["2026-W53", "2026-W52"]
    new, old = weeks
    assert (new.lost, new.recovered, new.left, new.moved, new.stay) == (4, 3, 1, 6, 4)
    assert (new.seconds, new.seconds_most) == (80, 1000)
    assert (new.balances, new.steps, new.given_up, new.promised, new.reached) == (2, 7, 1, 75.0, 50.0)
    assert (old.lost, old.recovered, old.left, old.seconds, old.promised) == (1, 0, 0, None, None)


def test_what_was_before_and_what_others_have_done_does_not_count() -> None:
    drain = structs.replace(BALANCE, work=CampaignWork(hosts=("h1",)))
    early = structs.replace(BALANCE, asked_at=FRIDAY - timedelta(weeks=3))
    old = lost(1, "done", FRIDAY - timedelta(weeks=3))
    assert weeks_of([drain, early], [old], FRIDAY - timedelta(weeks=2)) == ()
    assert week_of(datetime(2026, 12, 1, tzinfo=UTC)) == "2026-W49"


def test_a_balance_that_has_made_things_worse_has_gained_nothing() -> None:
    worse = structs.replace(BALANCE, reached=BalanceFigures(spread=0.5))
    (week,) = weeks_of([worse], [], FRIDAY - timedelta(weeks=1))
    assert week.reached == 0
