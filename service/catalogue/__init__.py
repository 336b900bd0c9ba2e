"""What is known, as immutable dated records: the catalogue without its database."""
