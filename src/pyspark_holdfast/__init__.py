"""Spark finds data sources in modules whose names begin with `pyspark_`: this is where it finds `holdfast`."""

from holdfast.pipeline.source import HoldfastSource as DefaultSource

__all__ = ["DefaultSource"]
