"""What becomes of a host that is emptied, by what schedulers tell of it and its guests."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

import pytest
from msgspec import structs

from bus.messages.build import InstanceDetails, InstanceState
from bus.messages.hosts import ClassAmounts, HostUse
from bus.messages.keeping import CampaignHost, CampaignId, CampaignState, CampaignWork, Movement, MovementId
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostSetting, HostState
from engine.inventories import ConsumerId, ProviderId
from keeper.core.campaigns import Guests, after_listing, claimed_on, mode_when_done

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
CAMPAIGN = CampaignState(id=CampaignId(UUID(int=4)), name="spring", work=CampaignWork(hosts=("h1",)))
HOST = CampaignHost(id=ProviderId(UUID(int=5)), host="h1", cell="c1", stage="emptying", stage_at=NOON)
DRAINING = HostState(id=HOST.id, name="h1", cell="c1", up=True, setting=HostSetting(mode="draining"))


def guest_id(number: int) -> InstanceId:
    return InstanceId(ConsumerId(UUID(int=number)))


def guests(*numbers: int) -> Guests:
    return [
        (
            InstanceState(
                id=guest_id(each), request_id=RequestId(UUID(int=each)), sequence=1, state="active", host="h1"
            ),
            InstanceDetails(id=guest_id(each)),
        )
        for each in numbers
    ]


def movement(number: int, life: str = "planned", **fields: Any) -> Movement:
    made = Movement(
        id=MovementId(uuid5(CAMPAIGN.id, str(guest_id(number)))),
        instance=guest_id(number),
        campaign=CAMPAIGN.id,
        cause="campaign spring",
        cell="c1",
        host="h1",
    )
    return structs.replace(made, life=life, **fields)


@pytest.mark.parametrize(
    ("life", "known", "there", "stage", "planned", "withdrawn"),
    [
        ("running", [], guests(1, 2), "emptying", {1, 2}, set()),
        ("running", [movement(1)], guests(1, 2), "emptying", {2}, set()),
        ("running", [], guests(), "done", set(), set()),
        # Nobody has looked.
        ("running", [], None, "emptying", set(), set()),
        ("running", [movement(1, "done")], guests(), "done", set(), set()),
        # It has come back, or another one has come.
        ("running", [movement(1, "done")], guests(1), "emptying", {1}, set()),
        ("running", [movement(1, "moving")], guests(1), "emptying", set(), set()),
        ("running", [movement(1, "moving")], guests(), "emptying", set(), set()),
        # One that has left by itself: the next look says whether the host is empty.
        ("running", [movement(1)], guests(), "emptying", set(), {1}),
        ("running", [movement(1, "given_up", reason="full")], guests(1), "failed", set(), set()),
        ("running", [movement(1, "given_up", reason="full")], guests(), "done", set(), set()),
        ("running", [movement(1, "given_up"), movement(2, "moving")], guests(1, 2), "emptying", set(), set()),
        ("paused", [], guests(1), "emptying", {1}, set()),
        ("cancelled", [], guests(1), "skipped", set(), set()),
        ("cancelled", [movement(1, "done")], guests(1), "skipped", set(), set()),
        ("cancelled", [movement(1, "moving")], guests(1), "emptying", set(), set()),
        ("cancelled", [], guests(), "done", set(), set()),
    ],
)
def test_a_host_is_emptied_until_nothing_is_on_it(
    life: str,
    known: list[Movement],
    there: Guests | None,
    *,
    stage: str,
    planned: set[int],
    withdrawn: set[int],
) -> None:
    campaign = structs.replace(CAMPAIGN, life=life)

    after = after_listing(campaign, HOST, known, DRAINING, there, now=NOON)

    assert after.host.stage == stage
    assert {each.instance.int for each in after.planned} == planned
    assert {*after.withdrawn} == {movement(each).id for each in withdrawn}
    assert (after.host.ended_at is None) is (stage == "emptying")
    lives = [each.life for each in known]
    assert after.host.moved == lives.count("done")
    assert (stage == "failed") is bool(after.host.stay and not after.host.left)
    assert stage != "failed" or after.host.reason == "1 guests stay: full"


def test_a_host_is_not_empty_before_its_cell_knows_that_it_is_draining() -> None:
    set_now = structs.replace(DRAINING, setting=HostSetting(mode="draining", number=3), told=2)

    assert after_listing(CAMPAIGN, HOST, [], set_now, [], now=NOON).host.stage == "emptying"
    known = structs.replace(set_now, told=3)
    assert after_listing(CAMPAIGN, HOST, [], known, [], now=NOON).host.stage == "done"
    # Nothing is set for a host that is evacuated.
    work = structs.replace(CAMPAIGN.work, kind="evacuate")
    lost = structs.replace(set_now, up=False)
    assert (
        after_listing(structs.replace(CAMPAIGN, work=work), HOST, [], lost, [], now=NOON).host.stage == "done"
    )


def test_what_is_claimed_of_an_empty_host_is_waited_for_but_not_for_ever() -> None:
    """One that moved by an order of a person may be on its way there, or may come back."""
    amounts = {"VCPU": ClassAmounts(2, 8), "DISK_GB": ClassAmounts(0, 100)}
    claimed = claimed_on(HostUse(host=HOST.id, classes=amounts))
    assert claimed == "no guest is there, but of it are claimed 2 VCPU"

    def after(minutes: float, *known: Movement, kind: str = "drain", **more: str) -> CampaignHost:
        work = structs.replace(CAMPAIGN.work, kind=kind)
        told = DRAINING if kind == "drain" else structs.replace(DRAINING, up=False)
        now = NOON + timedelta(minutes=minutes)
        campaign = structs.replace(CAMPAIGN, work=work)
        return after_listing(
            campaign, HOST, known, told, [], now=now, **{"claimed": claimed, **more}, claimed_s=600
        ).host

    assert (after(9).stage, after(9).reason) == ("emptying", claimed)
    assert (after(10).stage, after(10).reason) == ("failed", claimed)
    # From the time when the last guest left.
    left = movement(1, "done", ended_at=NOON + timedelta(minutes=5))
    assert [after(each, left).stage for each in (14, 15)] == ["emptying", "failed"]
    assert after(0, claimed="").stage == "done"
    # The guests of a lost host run elsewhere by then; those that stay by a policy hold their shares.
    assert (after(10, kind="evacuate").stage, after(10, kind="evacuate").reason) == ("done", claimed)
    assert after(0, kind="evacuate", kept="1 guests stay by policy").stage == "done"


@pytest.mark.parametrize(
    ("kind", "told", "why"),
    [
        ("drain", DRAINING, ""),
        ("drain", None, ""),
        (
            "drain",
            structs.replace(DRAINING, setting=HostSetting(mode="up", by="ann")),
            "it was set up by ann",
        ),
        ("evacuate", DRAINING, "it is up again"),
        ("evacuate", structs.replace(DRAINING, up=False), ""),
    ],
)
def test_an_order_of_a_person_for_a_host_wins(kind: str, told: HostState | None, why: str) -> None:
    campaign = structs.replace(CAMPAIGN, work=structs.replace(CAMPAIGN.work, kind=kind))
    planned, moving = movement(1), movement(2, "moving")

    meanwhile = after_listing(campaign, HOST, [planned, moving], told, guests(1, 2), now=NOON)
    assert meanwhile.host.stage == "emptying"
    assert dict(meanwhile.withdrawn) == ({planned.id: why} if why else {})

    after = after_listing(campaign, HOST, [planned], told, guests(1, 2), now=NOON)
    assert (after.host.stage, after.host.reason) == (("failed", why) if why else ("emptying", ""))
    assert dict(after.withdrawn) == ({planned.id: why} if why else {})


@pytest.mark.parametrize(("mode", "number"), [("up", 8), ("down", 8), ("dead", 9)])
def test_a_host_that_was_set_since_it_was_fenced_is_not_emptied(mode: str, number: int) -> None:
    campaign = structs.replace(CAMPAIGN, work=structs.replace(CAMPAIGN.work, kind="evacuate"))
    host = structs.replace(HOST, epoch=7)
    setting = HostSetting(mode=mode, number=number, by="ann")  # type: ignore[arg-type]
    told = structs.replace(DRAINING, up=False, setting=setting)
    known = [structs.replace(movement(1), epoch=7)]

    after = after_listing(campaign, host, known, told, guests(1), now=NOON)
    assert (after.host.stage, after.host.reason) == (
        "failed",
        f"it was set {mode} by ann since it was fenced",
    )

    dead = structs.replace(told, setting=HostSetting(mode="dead", number=7))
    assert after_listing(campaign, host, known, dead, guests(1), now=NOON).host.stage == "emptying"
    before = [movement(1)]
    again = after_listing(campaign, host, before, dead, guests(1), now=NOON)
    assert dict(again.withdrawn) == {before[0].id: "its host was fenced since"}


def test_what_stays_by_policy_is_said_and_the_host_is_done() -> None:
    campaign = structs.replace(CAMPAIGN, work=structs.replace(CAMPAIGN.work, kind="evacuate"))
    told = structs.replace(DRAINING, up=False)
    after = after_listing(campaign, HOST, [], told, (), now=NOON, kept="2 guests stay: leave by no policy")
    assert (after.host.stage, after.host.reason) == ("done", "2 guests stay: leave by no policy")


@pytest.mark.parametrize(
    ("work", "mode"),
    [
        ({"kind": "drain"}, None),
        ({"kind": "drain", "then": "down"}, "down"),
        ({"kind": "evacuate", "then": "down"}, None),
        ({"kind": "restart", "hook": "reboot"}, "up"),
    ],
)
def test_a_host_is_left_as_the_work_says(work: dict[str, Any], mode: str | None) -> None:
    assert mode_when_done(CampaignWork(hosts=("h1",), **work)) == mode
