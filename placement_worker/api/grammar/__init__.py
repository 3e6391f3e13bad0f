"""How a request is read and an answer is written: schemas, queries, routes."""
