//! Fixtures for the end-to-end tests: real servers, a client without a driver, faults.
//!
//! | module | gives |
//! |---|---|
//! | [`mongod`] | standalones and replica sets, with users and TLS |
//! | [`administration`] | users and failing commands, with a driver and without |
//! | [`raw`] | a client that sends exactly the bytes a test asks for, and its own SCRAM |
//! | [`recorder`] | a forwarder that records its bytes and can cut, delay or freeze |
//! | [`certificates`] | an authority and the certificates it signed |
//! | [`seawall`] | Seawall in the test's own process |
//! | [`process`] | Seawall as a process: the real binary, signals, exit codes |
//! | [`turbulence`] | a forwarder that delays, stops and cuts after random bytes |
//! | [`failover`] | writers, killed primaries, and a check of the stored documents |
//! | [`eventually`] | waiting for a condition, with a time limit |
//! | [`scratch`] | a temporary directory, removed when its guard is dropped |
//!
//! Only [`seawall`], and [`mongod`] to find and run a mongod, use the proxy's code. Other fixtures
//! must not: a fixture that shared the proxy's code would share its mistakes.

pub mod administration;
pub mod certificates;
pub mod eventually;
pub mod failover;
pub mod mongod;
pub mod process;
pub mod raw;
pub mod recorder;
pub mod scratch;
pub mod seawall;
pub mod turbulence;
