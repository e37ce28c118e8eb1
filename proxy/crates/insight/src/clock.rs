//! The clock of the history. Tests can replace this clock.

use std::{fmt, time::SystemTime};

/// A source of the current time.
pub struct Clock(Box<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    /// A clock that reads the time from `now`.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Box::new(now))
    }
}

impl Default for Clock {
    /// The system clock.
    fn default() -> Self {
        Self::new(SystemTime::now)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").finish_non_exhaustive()
    }
}

impl Clock {
    /// The current time.
    pub(super) fn now(&self) -> SystemTime {
        (self.0)()
    }
}
