"""What was served and done, from the stream that serving writes: read by Spark, as a whole or as it comes.

A stream is any source of entries (`entries.ENTRY_SCHEMA`): Redis' streams through a Python data source here, Kafka's topics by
`entries.of_kafka`. `served.bring_served` gives the same rows as the drain of serving.
"""
