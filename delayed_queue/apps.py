from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.utils.translation import gettext_lazy as _


class DelayedQueueConfig(AppConfig):
    name = "delayed_queue"
    verbose_name = _("Delayed queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from delayed_queue.checks import check_database, check_server, check_settings
        from delayed_queue.tasks import discover

        checks.register(check_settings, "delayed_queue")
        checks.register(check_database, "delayed_queue")
        checks.register(check_server, checks.Tags.database)
        discover()
