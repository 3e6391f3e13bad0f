"""Placement's HTTP API: it translates requests into messages, and verdicts into answers. The rules are in core/."""
