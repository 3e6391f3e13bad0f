"""The web dashboard: the whole cloud in a browser. Users with the right also send orders there. app.py has all paths."""
