"""Everything Spark: the lake that is built from the journal, and the jobs that answer from it.

    java, session     a Spark session: embedded, on a cluster, or a Spark Connect server
    tables            the lake's tables and what each column means (no Spark: the docs are made from it)
    segments          the journal's files, as the broker's manifest names them
    delta             Delta tables whose files Spark wrote: commits, cursors, statistics
    messages, minutes, deaths    transformations, each a plain function `DataFrame -> DataFrame`
    build, upkeep     the job that keeps the tables; compaction and retention
    history, report, triage, reconcile    jobs that answer
    fields, changes   SQL over the fields of JSON payloads, and other payloads by it
    redrive, refill   jobs that fill queues; runs keeps who did what

PySpark is imported in this room and nowhere else, and this room is imported only by commands that need it.
"""
