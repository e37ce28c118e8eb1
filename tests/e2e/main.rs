//! End-to-end tests against real servers: one binary, one module a theme.

mod fixtures;
