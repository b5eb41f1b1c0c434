"""Settings of the example: a PostgreSQL of your own in DATABASE_URL, or else an embedded one in .postgres/."""

from pathlib import Path

import environ

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()


def _database() -> dict[str, object]:
    if "DATABASE_URL" in env:
        return dict(env.db("DATABASE_URL"))
    from delayed_queue import embedded

    return embedded.database(BASE_DIR / ".postgres")


SECRET_KEY = env.str("SECRET_KEY", "only-for-the-example-on-your-own-machine")
DEBUG = env.bool("DEBUG", default=False)
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
USE_TZ = True
TIME_ZONE = "UTC"
DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "delayed_queue",
    "example_project",
]
DELAYED_QUEUE: dict[str, object] = {}
