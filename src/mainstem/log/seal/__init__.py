"""From a file of frames to a Parquet segment: the child processes, and what they run."""
