//! Hostile clients. Their messages must not stop the service for other clients, and must not get
//! access to which the client has no right.

mod admin;
mod connections;
mod logins;
mod messages;
