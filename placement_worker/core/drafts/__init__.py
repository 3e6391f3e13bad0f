"""The books while one batch is decided: each decision changes a copy in memory, on which the next one is judged."""
