"""How the filters are learned."""
