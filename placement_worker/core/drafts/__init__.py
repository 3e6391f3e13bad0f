"""The changes of a batch so far, beside the part of the books that it was given."""
