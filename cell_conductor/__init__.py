"""The conductor: owns the instances of one cell, and tries alternates when a host fails. It never sends to schedulers."""
