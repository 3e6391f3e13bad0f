"""`moor usage`: shows how much a project holds of each resource class."""

from bus.messages.administration import AskUsages, UsagesFound
from moor.message_commands import command_that_sends
from moor.placement.providers_showing import print_usages

usage = command_that_sends(
    AskUsages,
    arguments={"project": "PROJECT"},
    words="Show how much a project holds of each class, by the type of consumer.",
    answer=UsagesFound,
    items=lambda found: found.usages,
    show=print_usages,
    nothing="project {project!r} holds nothing",
    operates=True,
)
