"""Values between documents, Arrow and a Delta table's columns."""
