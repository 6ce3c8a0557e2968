"""From logs to samples: source adapters, feature state as of a moment, point-in-time samples.

Front doors: `pipelines.sources.SOURCES` and `pipelines.sources.mapped.ingest_mapped`, `pipelines.expectations`,
`pipelines.features.build_states`, `pipelines.samples.build_samples`, `pipelines.spark.session`. They are not imported
here, so that an adapter runs without Spark.
"""
