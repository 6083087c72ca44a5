"""How a logical table is stored: names, types, evolution and settings. No Spark and no I/O."""
