//! Turns for tests that need the whole machine.

use tokio::sync::{Mutex, MutexGuard};

/// Waits until no other test of this process has a turn. The turn ends when the value is dropped.
///
/// A test with hundreds of clients takes it first. Two crowds at the same time would be so slow
/// that operations reach their timeouts.
pub async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}
