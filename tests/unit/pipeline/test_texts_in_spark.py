"""A text in a statement is that text, whatever is in it: who asks a query chooses it."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from mainstem.pipeline.session.spark import own_session
from mainstem.sql import spark_text

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "text", ["${env:PATH}", "${system:user.home}", "${spark.app.name}", "${hivevar:none}", "a'b\\"]
)
def test_nothing_of_the_process_is_put_into_a_text(spark: SparkSession, text: str) -> None:
    for session in (spark, own_session(spark)):
        assert session.sql(f"SELECT {spark_text(text)} AS said").collect()[0]["said"] == text
        assert session.range(1).select(sf.expr(spark_text(text)).alias("said")).collect()[0]["said"] == text
