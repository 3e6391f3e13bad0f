"""The simulated Ironic answers, and says, what a real one did: `make conformance` asks the real one again."""

from tests.conformance.ironic_steps import OurPeer, played, recorded, wrong


async def test_ours_differs_from_what_a_real_ironic_answered_only_where_that_is_listed() -> None:
    assert not wrong(recorded(), await played(OurPeer()))
