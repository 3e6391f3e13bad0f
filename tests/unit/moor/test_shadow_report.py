"""`moor shadow report` counts the notes of shadow mode, and says why choices differ."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from engine.flavors import InstanceId
from nova_bridge.shadow.notes import VERDICTS, ShadowNote, ShadowVerdict, WeighersCompared
from nova_bridge.shadow.report_command import MEANINGS, ReasonCount, report_on, time_in, verdicts_in

AT = datetime(2026, 11, 25, 10, tzinfo=UTC)


def note(number: int, verdict: ShadowVerdict, **fields: object) -> ShadowNote:
    made: dict[str, object] = {
        "at": AT + timedelta(seconds=number),
        "request_id": f"req-{number}",
        "instance": InstanceId(UUID(int=number)),
        "verdict": verdict,
        **fields,
    }
    return ShadowNote(**made)  # type: ignore[arg-type]


def test_shares_are_those_of_the_compared_ones() -> None:
    notes = [
        note(1, "same", nova_after_s=1.0),
        note(2, "same", nova_after_s=3.0),
        note(3, "as_good", nova_after_s=2.0),
        note(4, "not_compared", reason="the worker stopped"),
        note(5, "neither"),
    ]
    found = report_on(notes, unreadable=2)
    by_verdict = {each.verdict: (each.instances, each.share) for each in found.verdicts}

    assert [*by_verdict] == [*VERDICTS]
    assert by_verdict["same"] == (2, 0.5)
    assert by_verdict["as_good"] == (1, 0.25)
    assert by_verdict["nova_worse"] == (0, 0.0)
    assert by_verdict["not_compared"] == (1, None)
    assert (found.instances, found.requests, found.compared, found.unreadable) == (5, 5, 4, 2)
    assert (found.first_at, found.last_at) == (AT + timedelta(seconds=1), AT + timedelta(seconds=5))
    assert found.seen_after_s == 2.0
    assert found.alike == 1.0


def test_differences_are_counted_by_weigher_filter_and_refusal() -> None:
    cpu = (WeighersCompared("cpu", 8, 2, 0.75), WeighersCompared("ram", 1, 2, -0.1))
    notes = [
        note(1, "nova_worse", weighed=cpu, reason="cpu 8 on h1, 2 on h2 (+0.75)"),
        note(2, "nova_worse", weighed=cpu, reason="the last"),
        note(3, "nova_better"),
        note(4, "filtered", filter="enabled", reason="enabled refuses h2: it is draining"),
        note(5, "only_nova", filter="traits", reason="traits refuses h1: lacks X", refusal="no host among 2"),
        note(6, "only_nova", refusal="flavor is what it is: " + "long " * 30),
        note(7, "only_ours", nova_reason="No valid host was found."),
        note(8, "same"),
    ]
    report = report_on(notes)
    found = report.reasons

    assert report.alike == 1 / 8
    assert found[0] == ReasonCount("nova_worse", "weigher cpu", 2, f"{UUID(int=2)}: the last")
    assert [(each.verdict, each.because) for each in found[1:4]] == [
        ("nova_better", "several instances of a request"),
        ("filtered", "filter enabled"),
        ("only_nova", "filter traits"),
    ]
    assert found[3].example == f"{UUID(int=5)}: traits refuses h1: lacks X; no host among 2"
    assert found[4].because.endswith("...")
    assert found[5].because == "No valid host was found."
    assert len(found) == 6


def test_no_notes_are_a_report_too() -> None:
    found = report_on([])

    assert (found.instances, found.first_at, found.alike, found.seen_after_s) == (0, None, None, None)
    assert found.reasons == ()
    assert all(each.share is None for each in found.verdicts)


def test_every_verdict_has_a_meaning() -> None:
    assert [*MEANINGS] == [*VERDICTS]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90s", AT - timedelta(seconds=90)),
        ("30m", AT - timedelta(minutes=30)),
        ("7d", AT - timedelta(days=7)),
        ("2026-11-24T09:00", datetime(2026, 11, 24, 9, tzinfo=UTC)),
        ("2026-11-24T09:00+02:00", datetime(2026, 11, 24, 7, tzinfo=UTC)),
    ],
)
def test_a_time_is_one_ago_or_one_of_a_calendar(text: str, at: datetime) -> None:
    assert time_in(text, AT) == at


def test_wrong_times_and_verdicts_are_named() -> None:
    with pytest.raises(ValueError, match="--since is 'soon', must be a time ago"):
        time_in("soon", AT)
    with pytest.raises(ValueError, match=r"--since is '999999d'"):
        time_in("999999d", AT)
    with pytest.raises(ValueError, match="--verdict is 'bad', must be one of same, as_good"):
        verdicts_in(["bad"])
