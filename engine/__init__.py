"""Decides which machine, and is pure: the resource model, the search for candidates, the grammar of requests, the picture's columns, filters, weighers, the choice and its reasons."""
