"""Documents between the log and the tables: their current state, reads, writes and change streams."""
