"""Sessions of the dashboard end in time, are bounded, and are found only by their secret."""

from moor.dashboard.access import (
    FORMS_MAX,
    IDLE_S_MAX,
    SESSIONS_MAX,
    SESSIONS_PER_USER_MAX,
    OpeningToken,
    SessionStore,
)
from placement_worker.api.values import Caller

ANN = Caller(user="ann", roles=frozenset(("admin",)))


class HandClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_session_is_found_by_its_secret_until_its_time_is_over() -> None:
    clock = HandClock()
    store = SessionStore(lasts_s=5_000, clock=clock)
    secret = store.begin(ANN)

    for _ in range(4):
        assert store.find(secret) is not None
        clock.now_s += 1_200
    assert store.find(secret) is not None
    clock.now_s += 201

    assert store.find(secret) is None
    assert store.find("") is None
    assert len(store) == 0


def test_a_session_that_is_not_used_ends_and_to_peek_is_no_use() -> None:
    clock = HandClock()
    store = SessionStore(clock=clock)
    secret = store.begin(ANN)

    clock.now_s += IDLE_S_MAX - 1
    assert store.peek(secret) is not None
    clock.now_s += 2

    assert store.peek(secret) is None
    assert store.find(secret) is None


def test_no_two_sessions_have_the_same_secret_or_form_token() -> None:
    store = SessionStore()
    secrets = [store.begin(Caller(user=f"u{number}")) for number in range(50)]
    tokens = {found.form_token for secret in secrets if (found := store.find(secret)) is not None}

    assert (len({*secrets}), len(tokens)) == (50, 50)
    assert min(map(len, (*secrets, *tokens))) >= 43
    assert not {*secrets} & tokens


def test_sessions_are_bounded_for_each_user_and_in_all() -> None:
    store = SessionStore()
    first, second, *_ = secrets = [store.begin(ANN) for _ in range(SESSIONS_PER_USER_MAX)]
    # The first one is used, so the second one goes.
    assert store.find(first) is not None
    secrets.append(store.begin(ANN))
    assert [store.peek(each) is not None for each in secrets] == [each != second for each in secrets]

    for number in range(SESSIONS_MAX + 5):
        store.begin(Caller(user=f"u{number}"))
    assert len(store) == SESSIONS_MAX


def test_a_session_remembers_a_limited_number_of_forms() -> None:
    store = SessionStore()
    session = store.find(store.begin(ANN))
    assert session is not None

    for number in range(FORMS_MAX + 1):
        session.note_form(str(number))

    assert len(session.sent_forms) == FORMS_MAX
    assert ("0" in session.sent_forms, str(FORMS_MAX) in session.sent_forms) == (False, True)


def test_an_opening_token_is_taken_once_and_the_next_one_is_shown_then() -> None:
    shown: list[str] = []
    opening = OpeningToken(shown.append)
    (first,) = shown

    assert not opening.take("")
    assert not opening.take(first[:-1])
    assert len(shown) == 1
    assert opening.take(first)
    assert not opening.take(first)
    assert len(shown) == 2
    assert opening.take(shown[1])
