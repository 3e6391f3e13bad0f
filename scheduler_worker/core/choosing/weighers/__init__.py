"""The weighers, one in each file (numbers that hosts report are all weighed by reported.py): which of the hosts that qualify is better?"""
