//! Fixtures for the end-to-end tests: real servers, a client without a driver, faults.
//!
//! | module | provides |
//! |---|---|
//! | [`mongod`] | standalones and replica sets, with users and TLS |
//! | [`administration`] | functions that create users and make commands fail |
//! | [`raw`] | a client that sends exactly the bytes that a test requests, and a SCRAM client |
//! | [`recorder`] | a forwarder that records all bytes, and can cut, delay or freeze connections |
//! | [`authority`] | an authority that issues and revokes certificates during a test |
//! | [`certificates`] | an authority and certificates that it has signed, in files |
//! | [`seawall`] | Seawall in the test's own process |
//! | [`process`] | Seawall as a process: the real binary, signals, exit codes |
//! | [`balancer`] | a load balancer in front of several instances |
//! | [`turbulence`] | a forwarder that delays, stops and cuts connections at random bytes |
//! | [`failover`] | writers, killed primaries, and a check of the stored documents |
//! | [`crowd`] | a lock for tests that need the whole machine |
//! | [`eventually`] | waiting for a condition, with a time limit |
//! | [`scratch`] | a temporary directory, removed when its guard is dropped |
//!
//! Fixtures must not use the proxy's code, because they would share its mistakes. There are three
//! exceptions: [`seawall`]; [`mongod`] and [`certificates`], which use the proxy's code for finding
//! and running a mongod; and the mutex of the proxy.

pub mod administration;
pub mod authority;
pub mod balancer;
pub mod certificates;
pub mod crowd;
pub mod eventually;
pub mod failover;
pub mod mongod;
pub mod process;
pub mod raw;
pub mod recorder;
pub mod scratch;
pub mod seawall;
pub mod turbulence;
