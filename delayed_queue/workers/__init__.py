"""Workers: what ``manage.py run_delayed_workers`` runs. docs/design/workers.md has the map."""
