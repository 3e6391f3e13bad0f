"""The scheduler's decisions: plain functions over frozen values and columns."""
