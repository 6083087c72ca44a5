"""The update language: read, applied, and told as a difference."""
