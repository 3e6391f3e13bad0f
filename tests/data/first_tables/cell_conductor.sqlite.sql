CREATE TABLE cell_conductor_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT cell_conductor_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "cell_conductor_version" VALUES('0001');
CREATE TABLE cell_instances (
    id CHAR(32) NOT NULL,
    cell VARCHAR(40) NOT NULL,
    state VARCHAR(16) NOT NULL,
    due_us BIGINT,
    body BLOB NOT NULL,
    placed BLOB,
    CONSTRAINT pk_cell_instances PRIMARY KEY (id, cell)
);
CREATE TABLE cell_notes (
    number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    cell VARCHAR(40) NOT NULL,
    at_us BIGINT NOT NULL,
    said BLOB NOT NULL
);
CREATE INDEX ix_cell_instances_cell_due_us ON cell_instances (cell, due_us) WHERE due_us IS NOT NULL;
