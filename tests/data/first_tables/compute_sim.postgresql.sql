CREATE TABLE public.compute_attempts (
    cell character varying(40) NOT NULL,
    host uuid NOT NULL,
    instance uuid NOT NULL,
    attempt bigint NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE public.compute_sim_version (
    version_num character varying(32) NOT NULL
);
INSERT INTO public.compute_sim_version VALUES ('0001');
ALTER TABLE ONLY public.compute_sim_version
    ADD CONSTRAINT compute_sim_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.compute_attempts
    ADD CONSTRAINT pk_compute_attempts PRIMARY KEY (cell, host, instance, attempt);
