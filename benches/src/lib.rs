//! Code that the end-to-end benches share: load generators, the compared targets, and measurements
//! of CPU time and memory.

pub mod abuse;
pub mod busy;
pub mod comparison;
pub mod concurrency;
pub mod extras;
pub mod handshakes;
pub mod insight;
pub mod load;
pub mod options;
pub mod output;
pub mod process;
pub mod relay;
pub mod rotation;
pub mod run;
pub mod setup;
pub mod spread;
pub mod storm_testbed;
pub mod strace;
