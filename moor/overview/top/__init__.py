"""`moor top`: the whole cloud, live.

rates.py    rates between two overviews; pure
lists.py    what each tab lists, and what Enter shows of a row
app.py      the screen
"""
