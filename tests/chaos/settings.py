"""Settings of the commands under test. Where their database is, they are told: some reach it through a proxy."""

import os

SECRET_KEY = "only-for-these-tests"  # noqa: S105
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["delayed_queue", "tests.chaos"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ["CHAOS_HOST"],
        "PORT": os.environ["CHAOS_PORT"],
        "NAME": "postgres",
        "USER": "postgres",
        "CONN_MAX_AGE": None,  # a connection that is kept is one that can be found dead
        "OPTIONS": {"application_name": os.environ.get("CHAOS_NAME", "chaos")},
    }
}
