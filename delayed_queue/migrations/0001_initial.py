from django.db import migrations, models

from delayed_queue.sql.operations import RunPostgreSQL, install_functions


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="DelayedMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(db_collation="C", db_column="pKey", max_length=200, verbose_name="key")),
                ("kind", models.CharField(db_collation="C", db_column="pKind", max_length=100, verbose_name="kind")),
                ("payload", models.BinaryField(verbose_name="payload")),
                ("scheduled_at", models.BigIntegerField(db_column="scheduledAt", verbose_name="scheduled at")),
                (
                    "scheduled_at_initially",
                    models.BigIntegerField(db_column="scheduledAtInitially", verbose_name="first scheduled at"),
                ),
                (
                    "lock_uuid",
                    models.CharField(blank=True, db_column="lockUuid", max_length=36, null=True, verbose_name="lease"),
                ),
                ("created_at", models.BigIntegerField(db_column="createdAt", verbose_name="created at")),
                ("priority", models.SmallIntegerField(db_default=0, default=0, verbose_name="priority")),
                ("attempts", models.IntegerField(db_default=0, default=0, verbose_name="attempts")),
                (
                    "max_attempts",
                    models.SmallIntegerField(
                        blank=True, db_column="maxAttempts", null=True, verbose_name="most attempts"
                    ),
                ),
                (
                    "expires_at",
                    models.BigIntegerField(blank=True, db_column="expiresAt", null=True, verbose_name="expires at"),
                ),
                (
                    "last_error",
                    models.TextField(blank=True, db_column="lastError", null=True, verbose_name="last error"),
                ),
                (
                    "first_offered_at",
                    models.BigIntegerField(
                        blank=True, db_column="firstOfferedAt", null=True, verbose_name="first offered at"
                    ),
                ),
            ],
            options={
                "verbose_name": "message",
                "verbose_name_plural": "messages",
                "db_table": "delayed_queue",
                "required_db_vendor": "postgresql",
                "indexes": [
                    models.Index(
                        models.Func("kind", function="hashtext"),
                        "priority",
                        "scheduled_at",
                        "id",
                        name="delayed_queue_due",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("key", "kind"), name="delayed_queue_key_kind"),
                    models.CheckConstraint(
                        condition=models.Q(("priority__gte", -100), ("priority__lte", 100)),
                        name="delayed_queue_priority",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="DeadMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(db_collation="C", max_length=200, verbose_name="key")),
                ("kind", models.CharField(db_collation="C", max_length=100, verbose_name="kind")),
                ("payload", models.BinaryField(verbose_name="payload")),
                ("priority", models.SmallIntegerField(verbose_name="priority")),
                ("attempts", models.IntegerField(verbose_name="attempts")),
                ("max_attempts", models.SmallIntegerField(blank=True, null=True, verbose_name="most attempts")),
                ("scheduled_at_initially", models.BigIntegerField(verbose_name="first scheduled at")),
                ("created_at", models.BigIntegerField(verbose_name="created at")),
                ("first_offered_at", models.BigIntegerField(blank=True, null=True, verbose_name="first offered at")),
                ("expires_at", models.BigIntegerField(blank=True, null=True, verbose_name="expires at")),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("exhausted", "out of attempts"),
                            ("expired", "expired"),
                            ("undecodable", "cannot be decoded"),
                        ],
                        max_length=20,
                        verbose_name="reason",
                    ),
                ),
                ("error", models.TextField(blank=True, null=True, verbose_name="error")),
                ("died_at", models.BigIntegerField(verbose_name="died at")),
            ],
            options={
                "verbose_name": "dead message",
                "verbose_name_plural": "dead messages",
                "db_table": "delayed_queue_dead",
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(fields=["kind", "died_at"], name="delayed_queue_dead_kind")],
            },
        ),
        # A fifth of the table is too late where most rows are messages for next month: docs/design/indexes.md.
        RunPostgreSQL(
            "ALTER TABLE delayed_queue SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000)",
            RunPostgreSQL.noop,
        ),
        install_functions(),
    ]
