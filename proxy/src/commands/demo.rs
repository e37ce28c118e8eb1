//! `seawall demo`: to be written.
use super::Exit;
use clap::Args;
#[derive(Debug, Args)]
pub(super) struct Arguments {}
pub(super) async fn run(_arguments: Arguments) -> Exit {
    Exit::Internal
}
