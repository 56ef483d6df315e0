"""The lake by Airflow: tables every ten minutes, the proof and the report at night.

Put it where Airflow looks for DAGs, on a machine that has Holdfast with its extra [spark] and sees the lake. A build
that is killed or run twice changes nothing that was right, so retries need no care; a proof that breaks fails its task.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LAKE = "/var/lib/holdfast/lake"
RETRIES = {"retries": 2, "retry_delay": timedelta(minutes=1)}

with DAG(
    "holdfast_build",
    schedule=timedelta(minutes=10),
    start_date=BEGIN,
    catchup=False,
    max_active_runs=1,  # two builds at a time refuse each other
    default_args=RETRIES,
):
    BashOperator(task_id="build", bash_command=f"holdfast pipeline build --lake {LAKE} --keep 90d --quiet")

with DAG("holdfast_night", schedule="0 3 * * *", start_date=BEGIN, catchup=False, default_args=RETRIES):
    prove = BashOperator(
        task_id="reconcile",
        bash_command=f"holdfast pipeline reconcile --lake {LAKE} --live --checkpoint-key /etc/holdfast/proof.key",
    )
    report = BashOperator(
        task_id="report",
        bash_command=f"holdfast pipeline report --lake {LAKE} --since 24h --compare --anomalies"
        " --html /srv/reports/{{ ds }}.html",
    )
    prove >> report
