//! A semaphore whose number of permits can change.

use std::sync::Arc;

use tokio::{runtime::Handle, sync::Semaphore};

use seawall_locks::Mutex;

/// A semaphore whose number of permits can change while permits are in use.
#[derive(Debug)]
pub(super) struct AdjustableSemaphore {
    semaphore: Arc<Semaphore>,
    count: Mutex<usize>,
}

impl AdjustableSemaphore {
    pub(super) fn new(count: usize) -> Self {
        Self {
            semaphore: Arc::new(Semaphore::new(count)),
            count: Mutex::new(count),
        }
    }

    pub(super) fn semaphore(&self) -> &Arc<Semaphore> {
        &self.semaphore
    }

    /// Changes the number of permits. If it falls, a task on `runtime` takes permits away as they
    /// are released.
    pub(super) fn set(&self, count: usize, runtime: &Handle) {
        let earlier = std::mem::replace(&mut *self.count.lock(), count);
        self.semaphore.add_permits(count.saturating_sub(earlier));
        let excess = u32::try_from(earlier.saturating_sub(count)).unwrap_or(u32::MAX);
        if excess > 0 {
            let semaphore = Arc::clone(&self.semaphore);
            runtime.spawn(async move {
                // This call fails only if the semaphore is closed, which never happens.
                if let Ok(permits) = semaphore.acquire_many_owned(excess).await {
                    permits.forget();
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn set_changes_the_number_of_permits_while_a_permit_is_in_use() {
        let permits = AdjustableSemaphore::new(2);
        let held = Arc::clone(permits.semaphore()).acquire_owned().await;
        permits.set(5, &Handle::current());
        assert_eq!(permits.semaphore().available_permits(), 4);
        permits.set(1, &Handle::current());
        drop(held);
        while permits.semaphore().available_permits() != 1 {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        assert_eq!(permits.semaphore().available_permits(), 1);
    }
}
