//! Hostile clients: what one of them sends must not stop the service for others, nor reach what it has no right to.

mod admin;
mod connections;
mod logins;
mod messages;
