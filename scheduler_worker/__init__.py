"""The scheduler room: it reads requests, chooses hosts by filters and weighers, claims them from placement, retries
refused claims, chooses alternates, decides moves, and explains its choices.
"""
