"""Define the tables, their migrations, the engine, and statements for SQLite and MariaDB."""
