"""Django: an application with the client, the transactional outbox and commands.

INSTALLED_APPS = [..., "holdfast.frameworks.django"]
HOLDFAST = {"url": "http://holdfast:8080", "token": "…"}     # or HOLDFAST_URL and HOLDFAST_TOKEN

with transaction.atomic():
    order.save()
    enqueue("emails", send_email.draft(to=order.email, text="Thank you"))

manage.py holdfast_relay                   # enqueues what was committed
manage.py holdfast_worker shop.jobs:app    # runs workers, each job with a usable database connection
"""
