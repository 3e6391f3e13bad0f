"""The refusals of searches that cost too much, as HTTP clients get them."""

from http import HTTPStatus

from bus.messages.candidates import TooCostly
from placement_worker.api.grammar.refusals import too_costly


def test_a_user_that_has_spent_its_time_is_told_who_how_much_and_when_to_ask_again() -> None:
    refused = too_costly(
        TooCostly(what="steps", spent=0, budget=9, user_ms=16_000, user_ms_max=15_000), "nova"
    )

    assert refused.status == HTTPStatus.TOO_MANY_REQUESTS
    assert refused.headers == {"retry-after": "6"}
    assert refused.code == "placement.query.too_costly"
    for told in ("user 'nova'", "16000 ms", "at most 15000", "ask again after 6 s"):
        assert told in refused.detail


def test_one_search_that_costs_too_much_is_a_bad_request() -> None:
    refused = too_costly(TooCostly(what="steps", spent=11, budget=10), "nova")

    assert (refused.status, dict(refused.headers)) == (HTTPStatus.BAD_REQUEST, {})
