"""The whole cloud at a glance: `moor status` and `moor top`. gathering.py asks, judging.py judges and is pure, showing.py and top/ show it."""
