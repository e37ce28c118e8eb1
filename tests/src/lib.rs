//! Fixtures for the end-to-end tests: real servers, a client without a driver, faults.
//!
//! | module | gives |
//! |---|---|
//! | [`mongod`] | standalones and replica sets, with users and TLS |
//! | [`administration`] | users and failing commands, with a driver and without |
//! | [`raw`] | a client that sends exactly the bytes a test asks for, and its own SCRAM |
//! | [`recorder`] | a forwarder that remembers what passed and can cut, delay or freeze |
//! | [`certificates`] | an authority and the certificates it signed |
//! | [`seawall`] | Seawall in the test's own process |
//! | [`process`] | Seawall as a process: the real binary, signals, exit codes |
//! | [`turbulence`] | a forwarder that delays, stops and cuts after random bytes |
//! | [`failover`] | writers, killed primaries, and what must be there in the end |
//! | [`eventually`] | waiting for a fact, with a limit |
//! | [`scratch`] | a directory that ends with its guard |
//!
//! Nothing else here uses the proxy, apart from the module that finds and runs a mongod: a fixture
//! that shared the proxy's code would share its mistakes.

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
