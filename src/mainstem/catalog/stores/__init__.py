"""Where the catalog's own state is: pointers to metadata files, in SQLite or PostgreSQL."""
