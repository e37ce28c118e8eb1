//! Hostile clients: their messages must not stop the service for others, nor give access without
//! rights.

mod admin;
mod connections;
mod logins;
mod messages;
