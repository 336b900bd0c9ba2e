"""HTTP: the contract, and one module a slice of it."""
