"""Rows of one node, and what becomes of them by words."""

import functools

from ironic_sync.core.notifications import Notification
from ironic_sync.core.offers import offer_of
from ironic_sync.core.ordering import OrderingRules, after_notification
from ironic_sync.core.rows import NodeRow
from tests.unit.ironic.captured import API, NODE_ID, a_node

SKEW_US = 2_000_000
WITH_REST = OrderingRules(skew_us=SKEW_US, can_read=True)
WITHOUT_REST = OrderingRules(skew_us=SKEW_US, can_read=False)
T0 = 1_795_159_882_000_000
SECOND = 1_000_000
UNKNOWN = NodeRow(id=NODE_ID)
# A node that was heard of long ago, and read since.
KNOWN = NodeRow(
    id=NODE_ID,
    version=7,
    node=a_node(),
    heard_at_us=T0 - 100 * SECOND,
    heard_from=API,
    read_at_us=T0 - 50 * SECOND,
)


def after(row: NodeRow, *words: Notification, rules: OrderingRules = WITH_REST) -> NodeRow:
    return functools.reduce(lambda before, word: after_notification(before, word, rules), words, row)


def is_offered(row: NodeRow) -> bool:
    return not offer_of(row, frozenset()).reserved
