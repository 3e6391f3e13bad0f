CREATE TABLE public.ironic_daemons (
    name character varying(63) NOT NULL,
    incarnation character varying(36) NOT NULL,
    lease_ends_us bigint NOT NULL,
    is_draining boolean NOT NULL,
    joined_us bigint NOT NULL
);
CREATE TABLE public.ironic_nodes (
    id uuid NOT NULL,
    cell character varying(40) NOT NULL,
    owner character varying(63) NOT NULL,
    epoch bigint NOT NULL,
    version bigint NOT NULL,
    holds_instance boolean NOT NULL,
    due_us bigint,
    needs_report boolean NOT NULL,
    needs_read boolean NOT NULL,
    body bytea NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE public.ironic_sync_version (
    version_num character varying(32) NOT NULL
);
INSERT INTO public.ironic_sync_version VALUES ('0001');
ALTER TABLE ONLY public.ironic_sync_version
    ADD CONSTRAINT ironic_sync_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.ironic_daemons
    ADD CONSTRAINT pk_ironic_daemons PRIMARY KEY (name);
ALTER TABLE ONLY public.ironic_nodes
    ADD CONSTRAINT pk_ironic_nodes PRIMARY KEY (id);
CREATE INDEX ix_ironic_nodes_owner_due_us ON public.ironic_nodes USING btree (owner, due_us) WHERE (due_us IS NOT NULL);
CREATE INDEX ix_ironic_nodes_owner_id ON public.ironic_nodes USING btree (owner, id);
CREATE INDEX ix_ironic_nodes_to_read ON public.ironic_nodes USING btree (owner, id) WHERE needs_read;
CREATE INDEX ix_ironic_nodes_to_report ON public.ironic_nodes USING btree (owner, id) WHERE needs_report;
