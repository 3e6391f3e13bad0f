"""Measurements and recordings of a whole real Nova, which tests/conformance/nova starts."""
