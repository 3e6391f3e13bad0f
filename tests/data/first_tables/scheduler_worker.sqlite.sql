CREATE TABLE aggregates_metadata (
    id CHAR(32) NOT NULL,
    name VARCHAR(255) NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT pk_aggregates_metadata PRIMARY KEY (id),
    CONSTRAINT uq_aggregates_metadata_name UNIQUE (name)
);
CREATE TABLE application_orders (
    name VARCHAR(64) NOT NULL,
    sent_at VARCHAR(32) NOT NULL,
    CONSTRAINT pk_application_orders PRIMARY KEY (name)
);
CREATE TABLE known_applications (
    name VARCHAR(64) NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT pk_known_applications PRIMARY KEY (name)
);
CREATE TABLE known_groups (
    id CHAR(32) NOT NULL,
    project VARCHAR(64) NOT NULL,
    name VARCHAR(255) NOT NULL,
    policy VARCHAR(32) NOT NULL,
    max_per_host INTEGER NOT NULL,
    deleted_at VARCHAR(32),
    CONSTRAINT pk_known_groups PRIMARY KEY (id)
);
CREATE TABLE known_hosts (
    id CHAR(32) NOT NULL,
    name VARCHAR(255) NOT NULL,
    cell VARCHAR(255) NOT NULL,
    enabled BOOLEAN NOT NULL,
    changed_at VARCHAR(32) NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT pk_known_hosts PRIMARY KEY (id)
);
CREATE TABLE request_notes (
    number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at VARCHAR(32) NOT NULL,
    placed BLOB NOT NULL,
    others BLOB NOT NULL
);
CREATE TABLE requested_instances (
    id CHAR(32) NOT NULL,
    request_id CHAR(32),
    place INTEGER,
    project VARCHAR(64),
    given BLOB NOT NULL,
    state VARCHAR(32) NOT NULL,
    sequence BIGINT NOT NULL,
    heard BIGINT NOT NULL,
    cell VARCHAR(255) NOT NULL,
    host VARCHAR(255) NOT NULL,
    attempt BIGINT NOT NULL,
    changed_at VARCHAR(32) NOT NULL,
    due_at VARCHAR(32),
    ended_at VARCHAR(32),
    unsaid BIGINT,
    place_order BLOB,
    troubles BLOB,
    CONSTRAINT pk_requested_instances PRIMARY KEY (id)
);
CREATE TABLE scheduler_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT scheduler_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "scheduler_version" VALUES('0006');
CREATE UNIQUE INDEX ix_requested_instances_request_id_place ON requested_instances (request_id, place);
CREATE INDEX ix_requested_instances_due_at ON requested_instances (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX ix_requested_instances_project_id ON requested_instances (project, id) WHERE project IS NOT NULL;
CREATE INDEX ix_known_hosts_name ON known_hosts (name);
CREATE INDEX ix_known_hosts_changed_at ON known_hosts (changed_at);
CREATE INDEX ix_requested_instances_ended_at ON requested_instances (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX ix_known_groups_project_id ON known_groups (project, id);
