"""The filter language: parsed, matched, and said in SQL and Arrow."""
