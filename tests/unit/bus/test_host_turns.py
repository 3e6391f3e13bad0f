"""The order in which the hosts of a cluster are tried."""

from kit.urls import HostTurns


def test_hosts_are_tried_in_their_order_from_the_first_on() -> None:
    assert HostTurns(3).order() == [0, 1, 2]
    assert HostTurns(3, first=2).order() == [2, 0, 1]


def test_the_host_that_failed_least_recently_is_tried_first() -> None:
    turns = HostTurns(3)
    orders = []
    for host in (0, 1, 2, 1, 1):
        turns.failed(host)
        orders.append(turns.order())

    assert orders == [[1, 2, 0], [2, 0, 1], [0, 1, 2], [0, 2, 1], [0, 2, 1]]
