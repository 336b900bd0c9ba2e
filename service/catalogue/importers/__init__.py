"""Text in, records out: one reader for each format a list, a log or a benchmark comes in."""
