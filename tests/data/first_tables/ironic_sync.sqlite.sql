CREATE TABLE ironic_daemons (
    name VARCHAR(63) NOT NULL,
    incarnation VARCHAR(36) NOT NULL,
    lease_ends_us BIGINT NOT NULL,
    is_draining BOOLEAN NOT NULL,
    joined_us BIGINT NOT NULL,
    CONSTRAINT pk_ironic_daemons PRIMARY KEY (name)
);
CREATE TABLE ironic_nodes (
    id CHAR(32) NOT NULL,
    cell VARCHAR(40) NOT NULL,
    owner VARCHAR(63) NOT NULL,
    epoch BIGINT NOT NULL,
    version BIGINT NOT NULL,
    holds_instance BOOLEAN NOT NULL,
    due_us BIGINT,
    needs_report BOOLEAN NOT NULL,
    needs_read BOOLEAN NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT pk_ironic_nodes PRIMARY KEY (id)
);
CREATE TABLE ironic_sync_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT ironic_sync_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "ironic_sync_version" VALUES('0001');
CREATE INDEX ix_ironic_nodes_owner_id ON ironic_nodes (owner, id);
CREATE INDEX ix_ironic_nodes_owner_due_us ON ironic_nodes (owner, due_us) WHERE due_us IS NOT NULL;
CREATE INDEX ix_ironic_nodes_to_report ON ironic_nodes (owner, id) WHERE needs_report;
CREATE INDEX ix_ironic_nodes_to_read ON ironic_nodes (owner, id) WHERE needs_read;
