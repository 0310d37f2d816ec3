CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE boots (
    boot SERIAL NOT NULL,
    PRIMARY KEY (boot)
);
CREATE TABLE correlations (
    session VARCHAR(64) NOT NULL,
    batch INTEGER NOT NULL,
    "index" INTEGER NOT NULL,
    study VARCHAR(64) NOT NULL,
    round INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    site VARCHAR(63) NOT NULL,
    PRIMARY KEY (session, batch, "index"),
    CONSTRAINT one_correlation_a_site UNIQUE (study, round, attempt, site)
);
CREATE TABLE nonces (
    party VARCHAR(63) NOT NULL,
    nonce VARCHAR(64) NOT NULL,
    seen_at_s FLOAT NOT NULL,
    PRIMARY KEY (party, nonce)
);
CREATE INDEX ix_nonces_seen_at_s ON nonces (seen_at_s);
CREATE TABLE refusals (
    id SERIAL NOT NULL,
    study VARCHAR(64) NOT NULL,
    party VARCHAR(63) NOT NULL,
    code VARCHAR(40) NOT NULL,
    detail TEXT NOT NULL,
    at_s FLOAT NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE studies (
    digest VARCHAR(64) NOT NULL,
    name VARCHAR(63) NOT NULL,
    signed BYTEA NOT NULL,
    state VARCHAR(20) NOT NULL,
    reason TEXT NOT NULL,
    cursor INTEGER NOT NULL,
    absent_in_a_row INTEGER NOT NULL,
    "end" BYTEA,
    PRIMARY KEY (digest),
    UNIQUE (name)
);
CREATE TABLE answers (
    study VARCHAR(64) NOT NULL,
    round INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    kind VARCHAR(20) NOT NULL,
    request_digest VARCHAR(64) NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (study, round, attempt, kind),
    FOREIGN KEY(study) REFERENCES studies (digest)
);
CREATE TABLE contributions (
    study VARCHAR(64) NOT NULL,
    round INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    site VARCHAR(63) NOT NULL,
    header BYTEA NOT NULL,
    body_digest VARCHAR(64) NOT NULL,
    receipt BYTEA NOT NULL,
    file TEXT,
    PRIMARY KEY (study, round, attempt, site),
    FOREIGN KEY(study) REFERENCES studies (digest)
);
CREATE TABLE mail (
    study VARCHAR(64) NOT NULL,
    sender VARCHAR(63) NOT NULL,
    recipient VARCHAR(63) NOT NULL,
    topic VARCHAR(63) NOT NULL,
    body_digest VARCHAR(64) NOT NULL,
    file TEXT NOT NULL,
    PRIMARY KEY (study, sender, recipient, topic),
    FOREIGN KEY(study) REFERENCES studies (digest)
);
CREATE TABLE ready_sites (
    study VARCHAR(64) NOT NULL,
    site VARCHAR(63) NOT NULL,
    PRIMARY KEY (study, site),
    FOREIGN KEY(study) REFERENCES studies (digest)
);
CREATE TABLE rounds (
    study VARCHAR(64) NOT NULL,
    round INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    state VARCHAR(20) NOT NULL,
    announcement BYTEA NOT NULL,
    closes_at_s FLOAT NOT NULL,
    agreed_set BYTEA,
    own_nonce BYTEA,
    peer_commitment VARCHAR(64),
    transcript BYTEA,
    query_header BYTEA,
    query_digest VARCHAR(64),
    query_file TEXT,
    release_set BYTEA,
    mask_seed BYTEA,
    output_file TEXT,
    outcome BYTEA,
    PRIMARY KEY (study, round, attempt),
    FOREIGN KEY(study) REFERENCES studies (digest)
);
INSERT INTO alembic_version (version_num) VALUES ('0001');
ALTER TABLE rounds ADD COLUMN sum_release BYTEA;
UPDATE alembic_version SET version_num='0002' WHERE alembic_version.version_num = '0001';
CREATE TABLE owner (
    kind VARCHAR(63) NOT NULL,
    name VARCHAR(63) NOT NULL,
    key_id VARCHAR(64) NOT NULL,
    federation VARCHAR(63) NOT NULL,
    PRIMARY KEY (kind)
);
UPDATE alembic_version SET version_num='0003' WHERE alembic_version.version_num = '0002';
ALTER TABLE rounds ADD COLUMN commitment BYTEA;
ALTER TABLE rounds ADD COLUMN tag_seed BYTEA;
ALTER TABLE rounds ADD COLUMN tag_check BYTEA;
ALTER TABLE rounds ADD COLUMN go BYTEA;
ALTER TABLE rounds ADD COLUMN tags_failed BYTEA;
ALTER TABLE rounds ADD COLUMN committed_at_s FLOAT;
UPDATE alembic_version SET version_num='0004' WHERE alembic_version.version_num = '0003';
ALTER TABLE studies ADD COLUMN created_at_s FLOAT;
ALTER TABLE ready_sites ADD COLUMN since_s FLOAT;
ALTER TABLE rounds ADD COLUMN began_at_s FLOAT;
ALTER TABLE rounds ADD COLUMN state_since_s FLOAT;
UPDATE alembic_version SET version_num='0005' WHERE alembic_version.version_num = '0004';
ALTER TABLE rounds ADD COLUMN noise_secret BYTEA;
UPDATE alembic_version SET version_num='0006' WHERE alembic_version.version_num = '0005';
ALTER TABLE contributions ADD COLUMN wrapped_key BYTEA;
UPDATE alembic_version SET version_num='0007' WHERE alembic_version.version_num = '0006';
CREATE TABLE history (
    place SERIAL NOT NULL,
    changes BIGINT NOT NULL,
    began BIGINT,
    restored_at_s BIGINT NOT NULL,
    PRIMARY KEY (place)
);
INSERT INTO history (place, changes, restored_at_s) VALUES (1, 0, 0);
CREATE TABLE histories (
    party VARCHAR(63) NOT NULL,
    signed BYTEA NOT NULL,
    PRIMARY KEY (party)
);
ALTER TABLE studies ADD COLUMN stranded_by VARCHAR(63);
UPDATE alembic_version SET version_num='0008' WHERE alembic_version.version_num = '0007';
CREATE TABLE lease (
    place SERIAL NOT NULL,
    boot INTEGER,
    holder VARCHAR(200),
    folder VARCHAR(64),
    until_s FLOAT NOT NULL,
    PRIMARY KEY (place)
);
INSERT INTO lease (place, until_s) VALUES (1, 0.0);
UPDATE alembic_version SET version_num='0009' WHERE alembic_version.version_num = '0008';
