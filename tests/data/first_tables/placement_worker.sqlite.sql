CREATE TABLE change_log (
    position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    written_by BIGINT NOT NULL,
    at VARCHAR(32) NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE consumers (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    uuid CHAR(32) NOT NULL,
    type VARCHAR(255) NOT NULL,
    project_id VARCHAR(255) NOT NULL,
    user_id VARCHAR(255) NOT NULL,
    cell VARCHAR(255) NOT NULL,
    generation BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    ended_at VARCHAR(32),
    host CHAR(32),
    server_group CHAR(32),
    held TEXT DEFAULT '{}' NOT NULL,
    CONSTRAINT uq_consumers_uuid UNIQUE (uuid)
);
CREATE TABLE feed (
    id INTEGER NOT NULL,
    term BIGINT NOT NULL,
    position BIGINT NOT NULL,
    cursor VARCHAR NOT NULL, forgotten VARCHAR DEFAULT '' NOT NULL,
    CONSTRAINT pk_feed PRIMARY KEY (id),
    CONSTRAINT ck_feed_one_row CHECK (id = 1)
);
INSERT INTO "feed" VALUES(1,0,0,'','');
CREATE TABLE holders (
    provider_id INTEGER NOT NULL,
    consumer_id INTEGER NOT NULL,
    CONSTRAINT pk_holders PRIMARY KEY (provider_id, consumer_id)
)
 WITHOUT ROWID
;
CREATE TABLE inventories (
    provider_id INTEGER NOT NULL,
    class_id INTEGER NOT NULL,
    total BIGINT NOT NULL,
    reserved BIGINT NOT NULL,
    min_unit BIGINT NOT NULL,
    max_unit BIGINT NOT NULL,
    step_size BIGINT NOT NULL,
    allocation_ratio DOUBLE NOT NULL,
    CONSTRAINT pk_inventories PRIMARY KEY (provider_id, class_id),
    CONSTRAINT fk_inventories_provider_id FOREIGN KEY(provider_id) REFERENCES providers (id),
    CONSTRAINT fk_inventories_class_id FOREIGN KEY(class_id) REFERENCES resource_classes (id)
)
 WITHOUT ROWID
;
CREATE TABLE kept_answers (
    answer CHAR(32) NOT NULL,
    page INTEGER NOT NULL,
    is_last BOOLEAN NOT NULL,
    kept_at VARCHAR(32) NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT pk_kept_answers PRIMARY KEY (answer, page)
);
CREATE TABLE placement_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT placement_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "placement_version" VALUES('0003');
CREATE TABLE provider_aggregates (
    provider_id INTEGER NOT NULL,
    aggregate CHAR(32) NOT NULL,
    CONSTRAINT pk_provider_aggregates PRIMARY KEY (provider_id, aggregate),
    CONSTRAINT fk_provider_aggregates_provider_id FOREIGN KEY(provider_id) REFERENCES providers (id)
)
 WITHOUT ROWID
;
CREATE TABLE provider_traits (
    provider_id INTEGER NOT NULL,
    trait_id INTEGER NOT NULL,
    set_by_operator BOOLEAN NOT NULL,
    CONSTRAINT pk_provider_traits PRIMARY KEY (provider_id, trait_id, set_by_operator),
    CONSTRAINT fk_provider_traits_provider_id FOREIGN KEY(provider_id) REFERENCES providers (id),
    CONSTRAINT fk_provider_traits_trait_id FOREIGN KEY(trait_id) REFERENCES traits (id)
)
 WITHOUT ROWID
;
CREATE TABLE providers (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    uuid CHAR(32) NOT NULL,
    name VARCHAR(200) NOT NULL,
    parent_id INTEGER,
    root_id INTEGER NOT NULL,
    cell VARCHAR(255) NOT NULL,
    generation BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    base BIGINT NOT NULL,
    shape BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    used TEXT DEFAULT '{}' NOT NULL, consumers BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT fk_providers_parent_id FOREIGN KEY(parent_id) REFERENCES providers (id) DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT fk_providers_root_id FOREIGN KEY(root_id) REFERENCES providers (id) DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT uq_providers_uuid UNIQUE (uuid),
    CONSTRAINT uq_providers_name UNIQUE (name)
);
CREATE TABLE resource_classes (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    name VARCHAR(255) NOT NULL,
    is_known BOOLEAN DEFAULT 1 NOT NULL,
    CONSTRAINT uq_resource_classes_name UNIQUE (name)
);
CREATE TABLE server_groups (
    uuid CHAR(32) NOT NULL,
    policy VARCHAR(32) NOT NULL,
    max_per_host INTEGER NOT NULL,
    CONSTRAINT pk_server_groups PRIMARY KEY (uuid)
);
CREATE TABLE stumps (
    root CHAR(32) NOT NULL,
    cell VARCHAR(255) NOT NULL,
    shape BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    felled_at VARCHAR(32) NOT NULL,
    CONSTRAINT pk_stumps PRIMARY KEY (root)
)
 WITHOUT ROWID
;
CREATE TABLE traits (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    name VARCHAR(255) NOT NULL,
    is_known BOOLEAN DEFAULT 1 NOT NULL,
    CONSTRAINT uq_traits_name UNIQUE (name)
);
CREATE INDEX ix_providers_root_id ON providers (root_id);
CREATE INDEX ix_providers_parent_id ON providers (parent_id);
CREATE INDEX ix_consumers_ended_at ON consumers (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX ix_consumers_server_group ON consumers (server_group) WHERE server_group IS NOT NULL;
CREATE INDEX ix_change_log_written_by ON change_log (written_by);
