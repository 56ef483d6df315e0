"""Messages that are enqueued by the clock: records.py says what is stored and when it ticks, schedules.py acts."""
