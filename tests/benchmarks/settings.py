"""The example's settings, with the tasks that are measured, and the database that the run has made for itself."""

import os

from example_project.settings import *  # noqa: F403
from example_project.settings import DATABASES, INSTALLED_APPS

DATABASE_VARIABLE = "BENCHMARK_DATABASE"  # how worker processes are told its name

INSTALLED_APPS = [*INSTALLED_APPS, "tests.benchmarks"]
if DATABASE_VARIABLE in os.environ:
    DATABASES["default"]["NAME"] = os.environ[DATABASE_VARIABLE]
