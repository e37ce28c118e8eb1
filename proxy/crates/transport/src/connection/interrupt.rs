//! Lets one task end another task's wait for a server's reply.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;

use seawall_locks::Mutex;

/// Ends the wait for a reply on one connection. Only one task waits at a time.
#[derive(Debug, Default)]
pub struct Interrupt {
    is_raised: AtomicBool,
    waiter: AtomicWaker,
}

impl Interrupt {
    /// Begins a wait. An interrupt that was raised before does not end this wait.
    pub fn reset(&self) {
        self.is_raised.store(false, Ordering::Release);
    }

    /// Ready when the wait has been interrupted.
    pub fn poll_raised(&self, cx: &mut Context<'_>) -> Poll<()> {
        // The waker is registered before the check, so an interrupt after the check wakes the task.
        self.waiter.register(cx.waker());
        match self.is_raised.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn raise(&self) {
        self.is_raised.store(true, Ordering::Release);
        self.waiter.wake();
    }
}

/// The interrupts of all connections to one server. An operation resets only the interrupt of its
/// own connection, so operations do not contend for the lock of this list.
#[derive(Debug, Default)]
pub struct Interrupts(Mutex<Vec<Weak<Interrupt>>>);

impl Interrupts {
    /// Adds a connection's interrupt. After the connection was closed, a later call of `add` or
    /// `raise` removes the interrupt from the list.
    pub fn add(&self, interrupt: &Arc<Interrupt>) {
        let mut all = self.0.lock();
        if all.len() == all.capacity() {
            all.retain(|interrupt| interrupt.strong_count() > 0);
        }
        all.push(Arc::downgrade(interrupt));
    }

    /// Ends all current waits for replies.
    pub fn raise(&self) {
        let mut all = self.0.lock();
        let current: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        *all = current.iter().map(Arc::downgrade).collect();
        // The lock is released before the tasks are woken, because a woken task may need the lock
        // to add an interrupt.
        drop(all);
        current.iter().for_each(|interrupt| interrupt.raise());
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn raising_interrupts_ends_the_current_waits_for_replies_but_no_later_waits() {
        let (all, own, other) = <(Interrupts, Arc<Interrupt>, Arc<Interrupt>)>::default();
        all.add(&own);
        all.add(&other);
        let task = tokio::spawn(async move { poll_fn(|cx| own.poll_raised(cx)).await });
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        all.raise();
        task.await.unwrap();
        let is_raised = |interrupt: &Interrupt| {
            let raised = poll_fn(|cx| interrupt.poll_raised(cx)).now_or_never();
            raised.is_some()
        };
        assert!(is_raised(&other));
        other.reset();
        assert!(!is_raised(&other), "the next wait is not interrupted");
    }

    #[test]
    fn interrupts_of_closed_connections_are_removed_from_the_list() {
        let all = Interrupts::default();
        let open = Arc::default();
        all.add(&open);
        for _ in 0..1_000 {
            all.add(&Arc::default());
        }
        let listed = all.0.lock().len();
        assert!(listed < 10, "{listed} interrupts for one connection");
        all.raise();
        assert_eq!(all.0.lock().len(), 1);
    }
}
