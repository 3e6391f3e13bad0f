"""Clouds that exist: our scheduler in nova-scheduler's stead, shadow mode, and the import from Nova's databases."""
