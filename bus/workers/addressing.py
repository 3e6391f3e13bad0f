"""Where messages go: the key by which they share parcels, their destination, and the copies for the feeds of projects."""

from collections.abc import Callable, Sequence

from msgspec import structs

from bus.message import Message
from bus.topology import FEED, REPLY, Destination, Kind, destination_of, reader_of_end
from bus.workers.parcels import Key, Outgoing

# Returns the project on whose feed an event is repeated; empty for none.
ProjectOf = Callable[[Message], str]


def with_copies(outgoing: Sequence[Outgoing], project_of: ProjectOf) -> Sequence[Outgoing]:
    """Add copies of events to these messages: one for the feed of the project that an event is about."""
    copies = [
        structs.replace(each, feed=project, id="")
        for each in outgoing
        if not each.to and not each.feed and (project := project_of(each.message))
    ]
    return [*outgoing, *copies] if copies else outgoing


def key_of(outgoing: Outgoing) -> Key:
    if outgoing.feed:
        # Events of all types share parcels on a feed.
        return FEED, outgoing.feed, ""
    if outgoing.to:
        return REPLY, outgoing.to, outgoing.reply_to
    message = outgoing.message
    kind = type(message)
    return kind, reader_of_end(kind)(message), outgoing.reply_to


def destination(outgoing: Outgoing) -> Destination:
    if outgoing.feed:
        return Destination(FEED, outgoing.feed, Kind.EVENT)
    if outgoing.to:
        return Destination(REPLY, outgoing.to, Kind.ANSWER)
    return destination_of(outgoing.message)
