"""Shadow mode: beside a Nova that goes on with nova-scheduler, decide copies of its requests, and note what both chose.

Nothing is claimed and nothing is answered. `moor shadow report` reads the notes.

settings.py     what an operator may tune of it
core/           the notes, and how two choices are compared; pure
notes_file.py   keeps the notes, a bounded number of them
choosing.py     chooses as if Nova had not claimed anything for the request yet
following.py    finds out what Nova chose, compares, and notes it
listening.py    the queue of copies
wiring.py       the parts, put together
"""
