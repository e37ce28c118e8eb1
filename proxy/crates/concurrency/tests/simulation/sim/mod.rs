//! A simulation of clients, proxies and servers in virtual time.

pub(crate) mod comparison;
mod driver;
mod limiter;
pub(crate) mod outcome;
pub(crate) mod scenarios;
mod server;
mod world;

pub(crate) use self::{
    driver::{Policy, run},
    scenarios::all,
};
