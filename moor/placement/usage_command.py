"""`moor usage`: shows how much a project holds of each resource class."""

from bus.messages.administration import AskUsages, UsagesFound
from moor.client import asked
from moor.option_structs import with_arguments
from moor.options import AsJson, BusUrl, out
from moor.placement.providers_showing import print_usages
from moor.showing import print_one


@with_arguments(project="PROJECT")
def usage(question: AskUsages, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """Show how much a project holds of each class, by the type of consumer."""
    usages = asked(bus, question, UsagesFound).usages
    if usages or as_json:
        print_one(usages, print_usages, as_json=as_json)
    else:
        out.print(f"project {question.project!r} holds nothing", markup=False, highlight=False)
