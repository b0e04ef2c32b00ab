"""Tables, migrations, the engine, and statements for SQLite and MariaDB."""
