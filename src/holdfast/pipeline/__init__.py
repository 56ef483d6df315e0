"""Everything Spark: the lake that is built from the journal, and the jobs that query it.

    spark/    a Spark session (embedded, on a cluster, or a Spark Connect server), Java, tasks for executors
    lake/     the journal's segments, Delta tables and their columns, maintenance, records of jobs
    build/    from segments to tables: shuffle, fold, commit
    jobs/     history, report, triage, reconcile; redrive, replay and load, which fill queues

PySpark is imported in this package and nowhere else, and only commands that need it import this package.
"""
