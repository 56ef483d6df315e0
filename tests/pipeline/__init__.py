"""Tests of the pipeline: one Spark for all of them."""
