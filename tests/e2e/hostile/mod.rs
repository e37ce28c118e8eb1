//! Hostile clients. Their messages must not stop the service for other clients, and must not give
//! access without the right to it.

mod admin;
mod connections;
mod logins;
mod messages;
