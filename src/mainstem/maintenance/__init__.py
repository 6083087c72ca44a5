"""Which tables are maintained, when, and by which jobs. Decides; the pipeline does the work on Spark."""
