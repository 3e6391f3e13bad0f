CREATE TABLE aggregate_hosts (
	created_at DATETIME,
	updated_at DATETIME,
	id INTEGER NOT NULL,
	host VARCHAR(255),
	aggregate_id INTEGER NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT uniq_aggregate_hosts0host0aggregate_id UNIQUE (host, aggregate_id),
	FOREIGN KEY(aggregate_id) REFERENCES aggregates (id)
);
CREATE TABLE aggregate_metadata (
	created_at DATETIME,
	updated_at DATETIME,
	id INTEGER NOT NULL,
	aggregate_id INTEGER NOT NULL,
	"key" VARCHAR(255) NOT NULL,
	value VARCHAR(255) NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT uniq_aggregate_metadata0aggregate_id0key UNIQUE (aggregate_id, "key"),
	FOREIGN KEY(aggregate_id) REFERENCES aggregates (id)
);
CREATE TABLE aggregates (
	created_at DATETIME,
	updated_at DATETIME,
	id INTEGER NOT NULL,
	uuid VARCHAR(36),
	name VARCHAR(255),
	PRIMARY KEY (id),
	CONSTRAINT uniq_aggregate0name UNIQUE (name)
);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE build_requests (
	created_at DATETIME,
	updated_at DATETIME,
	id INTEGER NOT NULL,
	request_spec_id INTEGER,
	project_id VARCHAR(255) NOT NULL,
	user_id VARCHAR(255),
	display_name VARCHAR(255),
	instance_metadata TEXT,
	progress INTEGER,
	vm_state VARCHAR(255),
	task_state VARCHAR(255),
	image_ref VARCHAR(255),
	access_ip_v4 VARCHAR(39),
	access_ip_v6 VARCHAR(39),
	info_cache TEXT,
	security_groups TEXT,
	config_drive BOOLEAN,
	key_name VARCHAR(255),
	locked_by VARCHAR(5),
	instance_uuid VARCHAR(36),
	instance TEXT,
	block_device_mappings TEXT,
	tags TEXT,
	PRIMARY KEY (id),
	CONSTRAINT uniq_build_requests0instance_uuid UNIQUE (instance_uuid)
);
CREATE TABLE cell_mappings (
	created_at DATETIME,
	updated_at DATETIME,
	id INTEGER NOT NULL,
	uuid VARCHAR(36) NOT NULL,
	name VARCHAR(255),
	transport_url TEXT,
	database_connection TEXT,
	disabled BOOLEAN,
	PRIMARY KEY (id),
	CONSTRAINT uniq_cell_mappings0uuid UNIQUE (uuid)
);
CREATE TABLE flavor_extra_specs (
	created_at DATETIME,
	updated_at DATETIME,
	id INTEGER NOT NULL,
	flavor_id INTEGER NOT NULL,
	"key" VARCHAR(255) NOT NULL,
	value VARCHAR(255),
	PRIMARY KEY (id),
	CONSTRAINT uniq_flavor_extra_specs0flavor_id0key UNIQUE (flavor_id, "key"),
	FOREIGN KEY(flavor_id) REFERENCES flavors (id)
);
CREATE TABLE flavor_projects (
	created_at DATETIME,
	updated_at DATETIME,
	id INTEGER NOT NULL,
	flavor_id INTEGER NOT NULL,
	project_id VARCHAR(255) NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT uniq_flavor_projects0flavor_id0project_id UNIQUE (flavor_id, project_id),
	FOREIGN KEY(flavor_id) REFERENCES flavors (id)
);
CREATE TABLE flavors (
	created_at DATETIME,
	updated_at DATETIME,
	name VARCHAR(255) NOT NULL,
	id INTEGER NOT NULL,
	memory_mb INTEGER NOT NULL,
	vcpus INTEGER NOT NULL,
	swap INTEGER NOT NULL,
	vcpu_weight INTEGER,
	flavorid VARCHAR(255) NOT NULL,
	rxtx_factor FLOAT,
	root_gb INTEGER,
	ephemeral_gb INTEGER,
	disabled BOOLEAN,
	is_public BOOLEAN,
	description TEXT,
	PRIMARY KEY (id),
	CONSTRAINT uniq_flavors0flavorid UNIQUE (flavorid),
	CONSTRAINT uniq_flavors0name UNIQUE (name)
);
CREATE TABLE host_mappings (
	created_at DATETIME,
	updated_at DATETIME,
	id INTEGER NOT NULL,
	cell_id INTEGER NOT NULL,
	host VARCHAR(255) NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT uniq_host_mappings0host UNIQUE (host),
	FOREIGN KEY(cell_id) REFERENCES cell_mappings (id)
);
CREATE TABLE instance_group_member (
	created_at DATETIME,
	updated_at DATETIME,
	id INTEGER NOT NULL,
	instance_uuid VARCHAR(255),
	group_id INTEGER NOT NULL,
	PRIMARY KEY (id),
	FOREIGN KEY(group_id) REFERENCES instance_groups (id)
);
CREATE TABLE instance_group_policy (
	created_at DATETIME,
	updated_at DATETIME,
	id INTEGER NOT NULL,
	policy VARCHAR(255),
	group_id INTEGER NOT NULL,
	rules TEXT,
	PRIMARY KEY (id),
	FOREIGN KEY(group_id) REFERENCES instance_groups (id)
);
CREATE TABLE instance_groups (
	created_at DATETIME,
	updated_at DATETIME,
	id INTEGER NOT NULL,
	user_id VARCHAR(255),
	project_id VARCHAR(255),
	uuid VARCHAR(36) NOT NULL,
	name VARCHAR(255),
	PRIMARY KEY (id),
	CONSTRAINT uniq_instance_groups0uuid UNIQUE (uuid)
);
CREATE TABLE instance_mappings (
	created_at DATETIME,
	updated_at DATETIME,
	id INTEGER NOT NULL,
	instance_uuid VARCHAR(36) NOT NULL,
	cell_id INTEGER,
	project_id VARCHAR(255) NOT NULL,
	queued_for_delete BOOLEAN,
	user_id VARCHAR(255),
	PRIMARY KEY (id),
	CONSTRAINT uniq_instance_mappings0instance_uuid UNIQUE (instance_uuid),
	FOREIGN KEY(cell_id) REFERENCES cell_mappings (id)
);
CREATE TABLE request_specs (
	created_at DATETIME,
	updated_at DATETIME,
	id INTEGER NOT NULL,
	instance_uuid VARCHAR(36) NOT NULL,
	spec TEXT NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT uniq_request_specs0instance_uuid UNIQUE (instance_uuid)
);
CREATE INDEX aggregate_metadata_key_idx ON aggregate_metadata ("key");
CREATE INDEX aggregate_uuid_idx ON aggregates (uuid);
CREATE INDEX build_requests_instance_uuid_idx ON build_requests (instance_uuid);
CREATE INDEX build_requests_project_id_idx ON build_requests (project_id);
CREATE INDEX flavor_extra_specs_flavor_id_key_idx ON flavor_extra_specs (flavor_id, "key");
CREATE INDEX host_idx ON host_mappings (host);
CREATE INDEX instance_group_member_instance_idx ON instance_group_member (instance_uuid);
CREATE INDEX instance_group_policy_policy_idx ON instance_group_policy (policy);
CREATE INDEX instance_mappings_user_id_project_id_idx ON instance_mappings (user_id, project_id);
CREATE INDEX instance_uuid_idx ON instance_mappings (instance_uuid);
CREATE INDEX project_id_idx ON instance_mappings (project_id);
CREATE INDEX request_spec_instance_uuid_idx ON request_specs (instance_uuid);
CREATE INDEX uuid_idx ON cell_mappings (uuid);
INSERT INTO alembic_version VALUES ('d67eeaabee36');
