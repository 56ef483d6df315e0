-- Queues and groups by the longest wait of a day.
select
    queue,
    {{ adapter.quote('group') }},
    cast(minute as date) as day,
    sum(enqueued) as enqueued,
    max(wait_p95_ms) as worst_wait_p95_ms
from {{ source('holdfast', 'queue_minutes') }}
group by queue, {{ adapter.quote('group') }}, cast(minute as date)
