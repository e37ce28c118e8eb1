//! End-to-end tests against real servers. Each theme has a module.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "this crate contains only tests and their helpers"
)]

mod admin_tls;
mod awaiting;
mod basics;
mod cancelled;
mod capture;
mod capture_command;
mod changes;
mod client_tls;
mod commands;
mod concurrency;
mod counted;
mod credential_modes;
mod credentials;
mod crosswiring;
mod cursors;
mod demo;
mod differential;
mod drain;
mod exactness;
mod failover;
mod first_logins;
mod fixtures;
mod fleet;
mod gone;
mod hostile;
mod large;
mod listeners;
mod load_balancers;
mod own_commands;
mod parsers;
mod past;
mod peers;
mod profile;
mod protocol;
mod recorder_files;
mod redacted_captures;
mod redacted_copies;
mod rehearsals;
mod relay;
mod relay_before_login;
mod relay_headers;
mod reload;
mod reload_faults;
mod replay;
mod resources;
mod routers;
mod routing;
mod runbook;
mod scene;
mod served;
mod server_log;
mod server_tls;
mod service;
mod start;
mod storms;
mod telemetry;
mod tls_probes;
mod tls_reloads;
mod tls_rotation;
mod unauthenticated;
