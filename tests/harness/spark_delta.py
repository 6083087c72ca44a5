"""What a Spark session needs to read and write Delta tables beside Iceberg ones."""

DELTA_SETTINGS = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,"
    "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # At the default of 50 the smallest commit takes seconds.
    "spark.databricks.delta.snapshotPartitions": "1",
}
