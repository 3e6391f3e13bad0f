"""A description of each field of the messages that users send and receive; bus_reference.py writes it beside the field."""

from tools.pages.field_descriptions.books import BOOKS
from tools.pages.field_descriptions.claims import CLAIMS
from tools.pages.field_descriptions.hosts import HOSTS
from tools.pages.field_descriptions.keeping import KEEPING
from tools.pages.field_descriptions.plans import PLANS
from tools.pages.field_descriptions.requests import REQUESTS

_BY_TYPE = {**BOOKS, **CLAIMS, **HOSTS, **KEEPING, **PLANS, **REQUESTS}

FIELD_DESCRIPTIONS = {
    (kind, field): means for kind, fields in _BY_TYPE.items() for field, means in fields.items()
}
