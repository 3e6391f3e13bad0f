"""`moor demo`: a thousand instances find their homes, while hosts fail, fall silent and change under them.

playing.py      the cloud, embedded or on real servers, and what is asked of it
tally.py        what was heard on the bus so far, as anybody would hear it
picture.py      that, drawn while it runs
concluding.py   at the end: what the books say of it, checked
"""
