"""Measurements. `make bench` runs them all; every figure stands beside a floor or a peer of the same run."""
