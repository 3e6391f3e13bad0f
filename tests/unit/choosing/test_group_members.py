"""The members of server groups in a scheduler's picture: news in any order, and its own choices."""

import itertools

from engine.inventories import GroupId, GroupMember, Holder
from engine.picture.members import GroupMembers
from tests.contracts.placement_orders import DB, HOST, OTHER_HOST, WEB, an_id

GROUP, OTHER_GROUP = GroupId(an_id("group")), GroupId(an_id("another group"))
FIRST = GroupMember(group=GROUP, consumer=WEB, attempt=1, host=HOST)
SECOND = GroupMember(group=GROUP, consumer=WEB, attempt=2, host=OTHER_HOST)
OTHER = GroupMember(group=GROUP, consumer=DB, attempt=1, host=HOST)


def test_news_of_one_consumer_may_come_in_any_order_and_twice() -> None:
    news: tuple[GroupMember | Holder, ...] = (FIRST, SECOND, Holder(consumer=WEB, attempt=1))
    for order in itertools.permutations((*news, *news)):
        groups = GroupMembers()
        for each in order:
            if isinstance(each, GroupMember):
                groups.join([each])
            else:
                groups.leave([each])
        assert groups.of_group(GROUP) == [SECOND], order


def test_a_member_that_left_does_not_come_back_by_late_news() -> None:
    groups = GroupMembers()
    groups.join([FIRST, OTHER])

    groups.leave([Holder(consumer=WEB, attempt=3)])
    groups.join([FIRST, SECOND])

    assert groups.of_group(GROUP) == [OTHER]
    groups.join([GroupMember(group=OTHER_GROUP, consumer=WEB, attempt=4, host=HOST)])
    assert [each.attempt for each in groups.of_group(OTHER_GROUP)] == [4]


def test_a_choice_counts_until_it_is_dropped_and_never_beside_placements_word() -> None:
    groups = GroupMembers()
    groups.hold(FIRST)
    groups.hold(OTHER)
    assert groups.of_group(GROUP) == [FIRST, OTHER]
    assert groups.of_group(OTHER_GROUP) == []

    groups.join([SECOND])
    assert groups.of_group(GROUP) == [SECOND, OTHER]
    groups.drop([(WEB, 1), (DB, 1)])
    assert groups.of_group(GROUP) == [SECOND]


def test_a_reading_of_all_members_corrects_what_was_known_before_it_and_no_later_news() -> None:
    groups = GroupMembers()
    groups.join([FIRST, OTHER])
    known = groups.attempts()
    # The feed tells of this while the pages are read.
    groups.join([SECOND])

    assert groups.replace([], known) == 1
    assert groups.of_group(GROUP) == [SECOND]
    assert groups.replace([SECOND, OTHER], groups.attempts()) == 1
    assert groups.of_group(GROUP) == [SECOND, OTHER]


def test_a_page_that_was_read_before_a_member_left_does_not_bring_it_back() -> None:
    groups = GroupMembers()
    groups.join([FIRST])
    known = groups.attempts()
    groups.leave([Holder(consumer=WEB, attempt=1)])

    groups.replace([FIRST], known)

    assert groups.of_group(GROUP) == []


def test_a_false_attempt_and_a_false_end_count_until_all_members_are_read() -> None:
    """Attempts only grow: by its attempt, what is false would be later than everything true."""
    groups = GroupMembers()
    groups.join([FIRST, OTHER])
    groups.join([GroupMember(group=OTHER_GROUP, consumer=WEB, attempt=2**31 - 1, host=OTHER_HOST)])
    groups.leave([Holder(consumer=DB, attempt=2**31 - 1)])
    assert groups.of_group(GROUP) == []

    assert groups.replace([FIRST, OTHER], groups.attempts(), groups.left()) == 3

    assert groups.of_group(GROUP) == [FIRST, OTHER]
    assert groups.of_group(OTHER_GROUP) == []
    # An end that is told while the pages are read stays.
    known, left = groups.attempts(), groups.left()
    groups.leave([Holder(consumer=WEB, attempt=1)])
    groups.replace([FIRST, OTHER], known, left)
    assert groups.of_group(GROUP) == [OTHER]
