//! A lock for tests that need the whole machine.

use tokio::sync::{Mutex, MutexGuard};

/// Takes the lock that all tests of this process share, and waits while another test holds it.
/// Dropping the guard releases the lock.
///
/// A test with hundreds of clients takes the lock before it starts the clients. Two such tests at
/// the same time would be so slow that operations reach their timeouts.
pub async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}
