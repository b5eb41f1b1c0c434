from django.db import migrations, models

from delayed_queue.sql.operations import RunPostgreSQL

# As Django would make it, but for the index with varchar_pattern_ops that it adds to a key of text. The collation is
# "C", in which the primary key serves LIKE itself. Django makes that index after all operations: none can drop it.
RESULT = """
    CREATE TABLE delayed_queue_result (
        id varchar(63) COLLATE "C" NOT NULL PRIMARY KEY,
        kind varchar(100) COLLATE "C" NOT NULL,
        backend text NOT NULL,
        queue_name text NOT NULL,
        priority smallint NOT NULL,
        run_after timestamp with time zone,
        call text NOT NULL,
        status varchar(10) NOT NULL,
        enqueued_at timestamp with time zone NOT NULL,
        started_at timestamp with time zone,
        last_attempted_at timestamp with time zone,
        finished_at timestamp with time zone,
        return_value text,
        errors jsonb NOT NULL,
        worker_ids jsonb NOT NULL,
        lock_uuid varchar(36)
    )
"""


class Migration(migrations.Migration):
    dependencies = [
        ("delayed_queue", "0002_workers"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[RunPostgreSQL(RESULT, "DROP TABLE delayed_queue_result")],
            state_operations=[
                migrations.CreateModel(
                    name="StoredResult",
                    fields=[
                        (
                            "id",
                            models.CharField(
                                db_collation="C", max_length=63, primary_key=True, serialize=False, verbose_name="id"
                            ),
                        ),
                        ("kind", models.CharField(db_collation="C", max_length=100, verbose_name="kind")),
                        ("backend", models.TextField(verbose_name="backend")),
                        ("queue_name", models.TextField(verbose_name="queue")),
                        ("priority", models.SmallIntegerField(verbose_name="priority")),
                        ("run_after", models.DateTimeField(blank=True, null=True, verbose_name="to run after")),
                        ("call", models.TextField(verbose_name="call")),
                        (
                            "status",
                            models.CharField(
                                choices=[
                                    ("READY", "ready"),
                                    ("RUNNING", "running"),
                                    ("FAILED", "failed"),
                                    ("SUCCESSFUL", "successful"),
                                ],
                                max_length=10,
                                verbose_name="status",
                            ),
                        ),
                        ("enqueued_at", models.DateTimeField(verbose_name="enqueued at")),
                        ("started_at", models.DateTimeField(blank=True, null=True, verbose_name="first started at")),
                        (
                            "last_attempted_at",
                            models.DateTimeField(blank=True, null=True, verbose_name="last started at"),
                        ),
                        ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished at")),
                        ("return_value", models.TextField(blank=True, null=True, verbose_name="return value")),
                        ("errors", models.JSONField(default=list, verbose_name="errors")),
                        ("worker_ids", models.JSONField(default=list, verbose_name="workers")),
                        ("lock_uuid", models.CharField(blank=True, max_length=36, null=True, verbose_name="lease")),
                    ],
                    options={
                        "verbose_name": "task result",
                        "verbose_name_plural": "task results",
                        "db_table": "delayed_queue_result",
                        "required_db_vendor": "postgresql",
                    },
                ),
            ],
        ),
    ]
