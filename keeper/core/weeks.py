"""What keepers have done by themselves, week by week."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from statistics import median

from bus.messages.keeping import CampaignHost, CampaignState, KeepingWeek
from keeper.core.balance import gain_between


def week_of(at: datetime) -> str:
    year, week, _ = at.isocalendar()
    return f"{year}-W{week:02}"


def weeks_of(
    campaigns: Iterable[CampaignState], losses: Iterable[CampaignHost], since: datetime
) -> tuple[KeepingWeek, ...]:
    """The weeks since then in which anything was done, the latest first. Campaigns count in the week of their beginning, and have their movements
    counted; hosts in that in which they fell silent.
    """
    balances: dict[str, list[CampaignState]] = defaultdict(list)
    lost: dict[str, list[CampaignHost]] = defaultdict(list)
    for campaign in campaigns:
        if campaign.work.kind == "balance" and campaign.asked_at is not None and campaign.asked_at >= since:
            balances[week_of(campaign.asked_at)].append(campaign)
    for host in losses:
        if host.lost_at is not None and host.lost_at >= since:
            lost[week_of(host.lost_at)].append(host)
    return tuple(
        [_week(each, lost[each], balances[each]) for each in sorted({*balances, *lost}, reverse=True)]
    )


def _week(week: str, lost: Sequence[CampaignHost], balances: Sequence[CampaignState]) -> KeepingWeek:
    done = [each for each in lost if each.stage == "done"]
    took = [
        (each.ended_at - each.lost_at).total_seconds()
        for each in done
        if each.ended_at is not None and each.lost_at is not None
    ]
    promised, reached = _gain(balances, "promised"), _gain(balances, "reached")
    return KeepingWeek(
        week=week,
        lost=len(lost),
        recovered=len(done),
        left=sum(each.stage in ("failed", "skipped") for each in lost),
        seconds=round(median(took)) if took else None,
        seconds_most=round(max(took)) if took else None,
        moved=sum(each.moved for each in lost),
        stay=sum(each.stay for each in lost),
        balances=len(balances),
        steps=sum(each.movements.get("done", 0) for each in balances),
        given_up=sum(each.movements.get("given_up", 0) for each in balances),
        promised=promised,
        reached=reached,
    )


def _gain(balances: Iterable[CampaignState], of: str) -> float | None:
    """The mean gain of these campaigns in percent; None if none has one."""
    gains = [
        gain_between(each.before, figures, each.work)
        for each in balances
        if each.before is not None and (figures := getattr(each, of)) is not None
    ]
    return round(max(sum(gains) / len(gains), 0.0), 1) if gains else None
