"""Several gateways over one log: those that stand by pass connections on to the one that leads."""
