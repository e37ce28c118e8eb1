//! A value that many tasks read and that rarely changes.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use tokio::sync::watch;

/// The latest value, and a notification of its changes. Every operation reads the value.
/// [`Self::current`] takes no lock, and does not write to memory that other readers also write to.
/// So threads do not slow each other down.
#[derive(Debug)]
pub(super) struct Published<T> {
    current: ArcSwap<T>,
    changes: watch::Sender<Arc<T>>,
}

impl<T: Default> Default for Published<T> {
    fn default() -> Self {
        let value = Arc::<T>::default();
        Self {
            current: ArcSwap::new(Arc::clone(&value)),
            changes: watch::Sender::new(value),
        }
    }
}

impl<T> Published<T> {
    /// Replaces the value. Must not be called by two threads at a time: [`Self::current`] and the
    /// receivers could then keep different values.
    pub(super) fn replace(&self, value: T) {
        let value = Arc::new(value);
        // The value is stored before the notification, because notified receivers may call
        // `current` at once.
        self.current.store(Arc::clone(&value));
        self.changes.send_replace(value);
    }

    /// The latest value. Do not keep it across an `await`, because a later value may replace it.
    pub(super) fn current(&self) -> Guard<Arc<T>> {
        self.current.load()
    }

    /// Returns a receiver of the latest value and all later values.
    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<T>> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn current_returns_the_new_value_as_soon_as_a_receiver_is_notified() {
        let published = Arc::new(Published::<u32>::default());
        let mut receiver = published.subscribe();
        let writer = Arc::clone(&published);
        let writing = tokio::task::spawn_blocking(move || {
            for value in 1..=1000 {
                writer.replace(value);
            }
        });
        let mut seen = 0;
        while seen < 1000 {
            receiver.changed().await.unwrap();
            let received = **receiver.borrow_and_update();
            let current = **published.current();
            assert!(
                seen < received && received <= current,
                "{seen} {received} {current}"
            );
            seen = received;
        }
        writing.await.unwrap();
    }
}
