"""Mainstem: every change an application makes, on one durable log, into an open lakehouse."""
