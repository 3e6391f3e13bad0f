"""One example of every message, with every field set: the golden files hold these."""

from tests.unit.examples.books import BOOKS
from tests.unit.examples.cells import CELLS
from tests.unit.examples.claims import CLAIMS
from tests.unit.examples.hosts import HOSTS
from tests.unit.examples.keeping import KEEPING
from tests.unit.examples.requests import REQUESTS
from tests.unit.examples.values import CONSUMER, WHEN

__all__ = ["CONSUMER", "EXAMPLES", "WHEN"]

EXAMPLES = (*REQUESTS, *CELLS, *HOSTS, *CLAIMS, *BOOKS, *KEEPING)
