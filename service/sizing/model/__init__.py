"""From a published configuration to the structure that decides memory and time."""
