"""The processes that run SQL from outside, and what is said to them."""
