"""The weighers, one in each file: which of the hosts that qualify is better?"""
