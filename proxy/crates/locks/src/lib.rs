//! The locks of Seawall. They wrap the locks of `parking_lot`, which are never poisoned: if a
//! thread panics while it holds a lock, other threads can still take this lock.
//!
//! In a build with debug assertions, `count` counts how often code takes locks, and where. So a
//! test can assert how many locks an operation takes. In other builds, nothing is counted, and
//! these types are as fast as those of `parking_lot`. The locks inside other crates, such as those
//! of tokio's channels, are not counted.

#![expect(
    clippy::disallowed_types,
    reason = "this crate wraps these types, so that tests can count the locks of all other code"
)]

#[cfg(debug_assertions)]
mod counting;

#[cfg(debug_assertions)]
pub use counting::{LockCounts, count};
pub use parking_lot::{Condvar, MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A mutex.
#[derive(Debug, Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates a mutex that is not locked.
    #[inline]
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Waits for the lock.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(debug_assertions)]
        counting::add();
        self.0.lock()
    }

    /// Takes the lock if it is free. An attempt that fails is counted too.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        #[cfg(debug_assertions)]
        counting::add();
        self.0.try_lock()
    }
}

/// A lock that several readers, or one writer, can hold.
#[derive(Debug, Default)]
pub struct RwLock<T>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// Creates a lock that is not held.
    #[inline]
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// Waits for a lock as a reader.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        #[cfg(debug_assertions)]
        counting::add();
        self.0.read()
    }

    /// Waits for the lock as its writer.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        #[cfg(debug_assertions)]
        counting::add();
        self.0.write()
    }
}
