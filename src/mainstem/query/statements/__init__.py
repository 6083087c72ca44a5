"""What a statement says: checked, bound to Spark's SQL, and pruned by."""
