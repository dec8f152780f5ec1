"""The tables of the journal."""

from __future__ import annotations

from harness.measure.journal.database import Schema

SCHEMA_VERSION = 5
SCHEMA = Schema(
    SCHEMA_VERSION,
    """
CREATE TABLE campaigns (
    id INTEGER PRIMARY KEY, device TEXT NOT NULL, plan TEXT NOT NULL, seed INTEGER NOT NULL, settings TEXT NOT NULL,
    fingerprint TEXT NOT NULL, clock TEXT NOT NULL, auxiliary TEXT NOT NULL, reference TEXT NOT NULL,
    rules TEXT NOT NULL, created TEXT NOT NULL, complete INTEGER NOT NULL DEFAULT 0,
    settled INTEGER NOT NULL DEFAULT 0, token INTEGER NOT NULL DEFAULT 0, untimed_s REAL NOT NULL DEFAULT 0,
    excluded TEXT);
CREATE TABLE probes (
    campaign INTEGER NOT NULL REFERENCES campaigns, probe TEXT NOT NULL, role TEXT NOT NULL, label TEXT NOT NULL,
    auxiliary TEXT, terms TEXT NOT NULL, visits TEXT NOT NULL, refused TEXT, deaths INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (campaign, probe)) WITHOUT ROWID;
CREATE TABLE layers (
    campaign INTEGER NOT NULL REFERENCES campaigns, key TEXT NOT NULL, context TEXT NOT NULL, op TEXT NOT NULL,
    name TEXT NOT NULL, layer TEXT NOT NULL, auxiliary TEXT NOT NULL, in_context TEXT NOT NULL, "null" TEXT NOT NULL,
    stacks TEXT NOT NULL, networks TEXT NOT NULL, PRIMARY KEY (campaign, key, context)) WITHOUT ROWID;
CREATE TABLE chains (
    campaign INTEGER NOT NULL REFERENCES campaigns, ordinal INTEGER NOT NULL, chain TEXT NOT NULL,
    PRIMARY KEY (campaign, ordinal)) WITHOUT ROWID;
CREATE TABLE rounds (
    campaign INTEGER NOT NULL REFERENCES campaigns, batch INTEGER NOT NULL, finished INTEGER NOT NULL,
    PRIMARY KEY (campaign, batch)) WITHOUT ROWID;
CREATE TABLE series (
    id INTEGER PRIMARY KEY, campaign INTEGER NOT NULL REFERENCES campaigns, probe TEXT NOT NULL,
    batch INTEGER NOT NULL, round INTEGER NOT NULL, position INTEGER NOT NULL, token INTEGER NOT NULL,
    taken TEXT NOT NULL, state TEXT NOT NULL, UNIQUE (campaign, batch, round, position));
CREATE TABLE samples (
    series INTEGER NOT NULL REFERENCES series, ordinal INTEGER NOT NULL, wall_ns INTEGER NOT NULL, cpu_ns INTEGER,
    device_ns INTEGER, preemptions INTEGER NOT NULL, PRIMARY KEY (series, ordinal)) WITHOUT ROWID;
CREATE TABLE digests (
    campaign INTEGER PRIMARY KEY, plan TEXT NOT NULL, state TEXT NOT NULL, series TEXT NOT NULL);
CREATE TABLE blocks (
    campaign INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    PRIMARY KEY (campaign, first)) WITHOUT ROWID;
CREATE INDEX troubled_probes ON probes (campaign, probe) WHERE deaths OR refused IS NOT NULL;
""",
)
