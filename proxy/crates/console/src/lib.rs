//! The commands for a running proxy: `top` and `report` show the proxy's measurements, and the
//! commands in `control` show its state or act on it. `capture` controls captures of the clients'
//! traffic. `replays` formats the results of replays of such captures.
//!
//! The commands send requests to the admin API. They use no code of the proxy itself.

pub mod capture;
pub mod control;
pub mod replays;
pub mod report;
pub mod top;

mod admin_client;
mod exit;
mod figures;
mod fleet;
mod output;

pub use self::{
    exit::{Exit, complain, print, print_line, say},
    output::{write_new, write_whole},
};
