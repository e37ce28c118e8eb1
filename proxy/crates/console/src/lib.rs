//! The commands that show what a running proxy has measured: `top` in a terminal, and `report` as
//! text, HTML or JSON.
//!
//! They send requests to the admin API. They use no code of the proxy itself.

pub mod report;
pub mod top;

mod admin_client;
mod exit;
mod figures;

pub use self::exit::{Exit, complain, say};
