"""The web dashboard: the whole cloud in a browser. Users with the right also send orders there.

service.py    the part of a process that serves it
app.py        the page for each path, and the users that may read it; protection.py has the headers that protect browsers
watching.py   one watcher asks the schedulers, for all who look
rendering.py  what every page has: templates, the reader, a refusal
pages.py      what each page shows: overview_pages.py, instance_pages.py, host_pages.py, group_pages.py, why_pages.py
timeline.py   what has happened to an instance, in its order
letters.py    the dead letters of all brokers, and letter_pages.py the pages of them; masking.py hides secrets
nodes.py      bare-metal nodes as the daemons know them, and node_pages.py the pages of them and of the ring
pictures.py   numbers as small pictures (SVG)
access.py     who reads or orders: sessions (sessions.py) and the identities of placement's HTTP API
forms.py      forms: read within limits, and only from pages of this dashboard
actions.py    the pages that write: to log in and out, to confirm an order, and to see what became of it
orders.py     all orders; ordering.py says what an order is, host_orders.py has those about hosts, and jobs.py what goes on
templates/, static/   the pages, one style sheet, one script
"""
