//! The modules of the bench `concurrency`. The bench measures `pool.concurrency`: the limit for the
//! number of operations that run at the same time on one server.
//!
//! A cell is the measurement of one limit with one number of clients in one situation. Each cell
//! has a new Seawall process, so no cell depends on what Seawall learned in another cell.
//!
//! If `pool.concurrency` is `auto`, a controller in Seawall chooses the limit. Traces show this
//! limit and the throughput over time: with a real server, and in the simulation that the
//! controller's tests use.

pub mod cells;
pub mod delay;
pub mod pictures;
pub mod plan;
pub mod report;
pub mod simulated;
pub mod testbed;
pub mod trace;
