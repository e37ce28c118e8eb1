//! End-to-end tests against real servers: one binary, one module a theme.

mod basics;
mod credentials;
mod crosswiring;
mod demo;
mod drain;
mod drivers;
mod exactness;
mod fixtures;
mod protocol;
mod routing;
mod start;
mod unauthenticated;
