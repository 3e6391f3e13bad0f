"""Keeps the cloud: campaigns empty hosts, movements are granted against budgets. It asks for moves as any client does."""
