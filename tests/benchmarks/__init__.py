"""What the queue costs over bare SQL: the same work by raw psycopg, on the same server, in the same run."""
