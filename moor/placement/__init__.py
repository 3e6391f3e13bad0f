"""Commands about placement's providers, candidates and usage."""
