CREATE TABLE compute_attempts (
    cell VARCHAR(40) NOT NULL,
    host CHAR(32) NOT NULL,
    instance CHAR(32) NOT NULL,
    attempt BIGINT NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT pk_compute_attempts PRIMARY KEY (cell, host, instance, attempt)
)
 WITHOUT ROWID
;
CREATE TABLE compute_sim_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT compute_sim_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "compute_sim_version" VALUES('0001');
