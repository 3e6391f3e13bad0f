"""The search for allocation candidates: which providers can give what is asked for, and how.

`query` is what may be asked, `provider_index` holds all providers as columns, `search` finds, `found` is the result.
"""
