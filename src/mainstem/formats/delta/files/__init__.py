"""Data files of a Delta table: written, read, pruned, and the rows of them that are gone."""
