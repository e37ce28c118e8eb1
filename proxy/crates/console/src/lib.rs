//! The commands that show what a running proxy has measured: `top` in a terminal, and `report` as
//! text, HTML or JSON.
//!
//! They request the replies of the admin API. They do not know the proxy.

pub mod report;
pub mod top;

mod admin_client;
mod exit;
mod figures;

pub use self::exit::{Exit, complain, say};
