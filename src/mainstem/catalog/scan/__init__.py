"""What manifests say: scan plans, inventories, live rows."""
