"""The workers under disturbance: real commands in processes of their own, and a PostgreSQL that may be ill-treated.

``make chaos`` runs the full forms and prints a table; tests/test_chaos.py runs a short form of each. Every scenario
ends with the ledger (ledger.py): nothing lost, atomic effects once, and every second effect of a plain task explained.

It is a Django app of its own (settings.py, models.py, tasks.py), installed nowhere else.
"""
