"""The whole cloud at a glance: `moor status` and `moor top`.

gathering.py       asks a scheduler and the brokers
judging.py         what is wrong, and what an operator should know; pure
showing.py         the tables of both commands
status_command.py  one screen, once
top_command.py     the same, live; top/ has its screen
"""
