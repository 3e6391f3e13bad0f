"""The audit of the books. It compares the entries of placement, the API level, the cells and their hosts for each instance.

The rules are in `moor.books`.

books_reader.py    asks placement, the API level, the cells and the hosts, page by page side by side.
auditing.py        one audit: looks twice, and mends.
nova_books.py      what Nova holds: counted, and compared with what Nova knows.
nova_looks.py      remembers what Nova did not know, for the next audit.
audit_command.py   `moor audit`
"""
