"""The rules about orders to build, to stop, to move and to destroy an instance.

What the answer to an order must be is decided by core/attempts.py (expected.py). Each rule has instances of its own, so that
one that is broken breaks no other.
"""

from compute_sim.check.orders import (
    InstanceOrders,
    after_a_reshape,
    destroy_twice,
    interruptions,
    rebuild,
    resize_in_place,
    stop_and_start,
    without_running,
)
from compute_sim.check.session import CheckSession


async def spawns(session: CheckSession) -> None:
    of = session.instance()
    await session.answered(of.spawn())
    await session.must_hold(of, 1)


async def repeats_spawn(session: CheckSession) -> None:
    of = session.instance()
    await session.obeyed(of.spawn(), of.spawn())
    await session.must_hold(of, 1)


async def destroys(session: CheckSession) -> None:
    of = session.instance()
    await session.obeyed(*destroy_twice(of).orders)
    await session.must_hold(of)


async def destroys_unknown(session: CheckSession) -> None:
    await session.answered(session.instance().destroy())


async def never_runs_again(session: CheckSession) -> None:
    of = session.instance()
    await session.obeyed(of.spawn(), of.destroy(), of.spawn())
    await session.must_hold(of)
    # The order to destroy has overtaken the one to spawn.
    late = session.instance()
    session.expect(late.destroy())
    mark = len(session.wire.heard)
    await session.wire.send(late.destroy())
    await session.wire.send(late.spawn())
    await session.wait_for(late.spawn(), session.expect(late.spawn()), mark)
    await session.must_hold(late)


async def stops_and_starts(session: CheckSession) -> None:
    await session.obeyed(*stop_and_start(session.instance()).orders)


async def goes_by_numbers(session: CheckSession) -> None:
    of = session.instance()
    orders = (
        of.spawn(),
        of.start(7),
        of.stop(7),
        of.stop(9),
        of.start(8),
        of.stop(7),
        of.start(9),
        of.stop(9),
    )
    await session.obeyed(*orders)
    built = session.instance()
    await session.obeyed(built.spawn(), built.respawn(8), built.stop(7), built.start(7))


async def rebuilds(session: CheckSession) -> None:
    of = session.instance()
    await session.obeyed(*rebuild(of).orders)
    await session.must_hold(of, 1)


async def obeys_with_an_old_share(session: CheckSession) -> None:
    await session.obeyed(*after_a_reshape(session.instance()).orders)


async def resizes(session: CheckSession) -> None:
    of = session.instance()
    spawn, stop, receive, destroy = resize_in_place(of).orders
    await session.obeyed(spawn, stop, receive)
    await session.must_hold(of, 1, 2)
    await session.answered(destroy)
    await session.must_hold(of, 2)


async def builds_stopped(session: CheckSession) -> None:
    await session.obeyed(*without_running(session.instance()).orders)


async def saves(session: CheckSession) -> None:
    of = session.instance()
    await session.obeyed(of.spawn(), of.stop(1, save_as=f"{of.instance}-1"))
    later = session.instance()
    await session.obeyed(later.spawn(), later.stop(1), later.stop(1, save_as=f"{later.instance}-1"))


async def refuses(session: CheckSession) -> None:
    one, two, three = session.instance(), session.instance(), session.instance()
    await session.obeyed(one.stop(1), two.start(1), three.respawn(1))
    for each in (one, two, three):
        await session.must_hold(each)


async def receives_only_what_is_stopped(session: CheckSession) -> None:
    of = session.instance()
    await session.obeyed(of.spawn(), of.receive())
    # It was refused, and the source is as it was.
    await session.must_hold(of, 1)
    await session.answered(of.stop(1))
    await session.answered(session.instance().receive())


async def is_interrupted(session: CheckSession) -> None:
    for each in interruptions(lambda _: session.instance()):
        if each.depends_on_time:
            continue
        await session.obeyed(*each.before)
        mark = len(session.wire.heard)
        session.expect(each.work)
        await session.wire.send(each.work)
        await session.wire.send(each.last)
        await session.wait_for(each.last, session.expect(each.last), mark)


async def moves(session: CheckSession) -> None:
    """Between two hosts, cold and live."""
    assert session.other is not None
    for is_live in (False, True):
        of = session.instance()
        there = InstanceOrders(session.other, of.instance)
        await session.obeyed(of.spawn(), *(() if is_live else (of.stop(1),)))
        await session.answered(there.receive(session.host.host, live=is_live))
        await session.obeyed(of.destroy(), there.stop(2, attempt=2))
