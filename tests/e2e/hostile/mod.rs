//! Hostile clients. Their messages must not stop the service for other clients, and must not give
//! the hostile clients more access than their rights allow.

mod admin;
mod connections;
mod handshakes;
mod logins;
mod messages;
