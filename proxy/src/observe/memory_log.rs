//! A log in memory, for unit tests.

use std::{
    io,
    sync::{Arc, LazyLock},
};

use seawall_locks::Mutex;
use tracing::{
    Dispatch, Level,
    subscriber::{DefaultGuard, NoSubscriber},
};

/// A second subscriber, which collects nothing. If there is only one, `tracing` asks only the
/// thread that first reaches a log statement if any subscriber collects it. If this thread belongs
/// to another test, `tracing` then drops the lines of this statement on all threads.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));

/// A log in memory. Clones share the text.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryLog(Arc<Mutex<Vec<u8>>>);

impl MemoryLog {
    /// Collects the log of this thread in the JSON format, from the level debug upwards, until the
    /// returned guard is dropped.
    pub(crate) fn collect(&self) -> DefaultGuard {
        LazyLock::force(&SECOND);
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_max_level(Level::DEBUG)
            .with_writer(move || log.clone());
        tracing::subscriber::set_default(subscriber.finish())
    }

    /// The whole log.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }

    /// The lines that contain `part`.
    pub(crate) fn lines_with(&self, part: &str) -> Vec<String> {
        let log = self.text();
        let lines = log.lines().filter(|line| line.contains(part));
        lines.map(str::to_owned).collect()
    }
}

impl io::Write for MemoryLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
