"""When a host counts as off, and what a person is asked."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from bus.messages.keeping import CampaignHost, CampaignId, CampaignState, CampaignWork, HostStage
from engine.hosts import HostSetting, HostState
from engine.inventories import ProviderId
from keeper.core.campaigns import staged, wrong_work
from keeper.core.fencing import (
    BEAT_LATE,
    after_answer_of,
    after_fence,
    after_fenced,
    begun,
    question_about,
)

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
SOON, LATER = NOON + BEAT_LATE, NOON + timedelta(minutes=1)
WORK = CampaignWork(kind="evacuate", hosts=("h1",), fence="power-off")
CAMPAIGN = CampaignState(id=CampaignId(UUID(int=9)), name="lost", work=WORK)


def host(stage: HostStage = "fencing", **fields: Any) -> CampaignHost:
    return CampaignHost(
        id=ProviderId(UUID(int=1)), host="h1", cell="c1", stage=stage, stage_at=NOON, **fields
    )


def told(mode: str = "up", *, number: int = 1, known: int = 1, heard_at: datetime = NOON) -> HostState:
    setting = HostSetting(mode=mode, number=number)  # type: ignore[arg-type]
    return HostState(
        id=ProviderId(UUID(int=1)),
        name="h1",
        cell="c1",
        up=False,
        setting=setting,
        told=known,
        heard_at=heard_at,
    )


def test_a_host_is_switched_off_first_if_its_campaign_has_a_fence() -> None:
    assert begun(host("waiting", fence="power-off"), WORK, NOON).stage == "fencing"
    assert begun(host("waiting"), WORK, NOON).stage == "emptying"


def test_a_lost_host_is_emptied_unfenced_only_if_a_policy_says_why() -> None:
    lost = CampaignWork(kind="evacuate", hosts=("h1",), by_policy=True)
    asked = begun(host("waiting"), lost, NOON)
    assert (asked.stage, asked.reason) == (
        "asked",
        "no policy names a fence for it, or says why it needs none",
    )
    assert begun(host("waiting", unfenced="its storage has leases"), lost, NOON).stage == "emptying"
    assert begun(host("waiting", fence="power-off"), lost, NOON).stage == "fencing"


@pytest.mark.parametrize("kind", ["drain", "restart"])
def test_only_an_evacuation_has_a_fence(kind: Any) -> None:
    hook = "reboot" if kind == "restart" else ""
    wrong = wrong_work(CampaignWork(kind=kind, hosts=("h1",), hook=hook, fence="power-off"))
    assert wrong == ("work.fence", "power-off", "only an evacuation switches hosts off before")


@pytest.mark.parametrize("seconds", [0, 30 * 86_400 + 1])
def test_a_fence_has_some_time(seconds: int) -> None:
    wrong = wrong_work(CampaignWork(kind="evacuate", hosts=("h1",), fence="power-off", fence_s=seconds))
    assert wrong == ("work.fence_s", seconds, "from 1 to 2592000")


def test_a_program_that_ends_well_says_that_the_host_is_off_and_another_has_a_person_asked() -> None:
    off, asked = (
        after_fence(host(), "power-off", "", LATER),
        after_fence(host(), "power-off", "no answer", LATER),
    )
    assert (off.stage, off.fenced_by, off.stage_at) == ("fenced", "power-off", LATER)
    assert (asked.stage, asked.fenced_by, asked.reason) == ("asked", "", "no answer")


@pytest.mark.parametrize(
    ("known", "stage"),
    [
        # Schedulers have forgotten it.
        (None, "emptying"),
        (told("dead"), "emptying"),
        (told("dead", number=2), "fenced"),
        (told(), "fenced"),
        (told("down"), "fenced"),
        # A beat that was on its way.
        (told("dead", heard_at=SOON), "emptying"),
        (told("dead", heard_at=SOON + timedelta(milliseconds=1)), "asked"),
        (told(heard_at=LATER), "asked"),
    ],
)
def test_it_is_emptied_when_its_cell_knows_that_it_is_dead_unless_it_is_heard(
    known: HostState | None, stage: str
) -> None:
    after = after_fenced(host("fenced", fenced_by="power-off"), known, LATER)
    assert after.stage == stage
    assert ("power-off says that it is off, and it was heard since" in after.reason) == (stage == "asked")


@pytest.mark.parametrize(
    ("answer", "by", "stage", "fenced_by"),
    [
        ("off", "ann", "fenced", "ann"),
        ("off", "", "fenced", "an operator"),
        ("again", "ann", "fencing", ""),
        ("leave", "ann", "failed", ""),
    ],
)
def test_what_an_answer_does(answer: str, by: str, stage: str, fenced_by: str) -> None:
    after = after_answer_of(host("asked", reason="no power"), answer, by, LATER)
    assert (after.stage, after.fenced_by, after.stage_at) == (stage, fenced_by, LATER)
    assert ("ann left it: no power" in after.reason) == (answer == "leave")


def test_a_host_is_asked_about_once_each_time() -> None:
    first = question_about(CAMPAIGN, staged(host(fence="power-off"), "asked", NOON, "no power"))
    again = question_about(CAMPAIGN, staged(host(fence="power-off"), "asked", NOON, "no power"))
    later = question_about(CAMPAIGN, staged(host(fence="power-off"), "asked", LATER, "no power"))
    assert first == again
    assert first.id != later.id
    assert first.text.endswith("no power")
    assert [each.answer for each in first.choices] == ["off", "again", "leave"]
