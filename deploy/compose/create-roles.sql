-- Run once by PostgreSQL's image, as the superuser, on an empty volume. Passwords come from files: never an argument.
\set ON_ERROR_STOP on
\set indexer `cat /run/secrets/indexer_password`
\set dashboard `cat /run/secrets/dashboard_password`

create role letta_reader nologin;
create role letta_indexer login password :'indexer';
create database letta owner letta_indexer encoding 'UTF8' template template0;

-- Grafana's: sees what letta_reader sees, writes nothing, and nothing it asks for takes long.
create role letta_dashboard login in role letta_reader password :'dashboard';
alter role letta_dashboard set default_transaction_read_only = on;
alter role letta_dashboard set statement_timeout = '30s';
