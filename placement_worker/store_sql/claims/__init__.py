"""Rows of consumers and what they hold, with a statement for each database where one for both costs too much."""
