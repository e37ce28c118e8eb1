//! Counts the locks that a thread takes.

use std::{cell::RefCell, collections::BTreeMap, fmt, mem::replace, panic::Location};

thread_local! {
    /// The locks that this thread has taken since [`count`] began; `None` outside of [`count`].
    static TAKEN: RefCell<Option<LockCounts>> = const { RefCell::new(None) };
}

/// For each source line that takes a lock: the number of times that a thread took a lock there.
/// `Display` writes one line of text for each source line.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockCounts(BTreeMap<(&'static str, u32), u64>);

impl LockCounts {
    /// Number of times that the thread took locks, in total.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Number of times that the thread took locks, by source file. The paths begin at the root of
    /// the repository.
    pub fn by_file(&self) -> BTreeMap<&'static str, u64> {
        let mut by_file = BTreeMap::new();
        for ((file, _), taken) in &self.0 {
            *by_file.entry(*file).or_default() += taken;
        }
        by_file
    }
}

impl fmt::Display for LockCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((file, line), taken) in &self.0 {
            writeln!(f, "{taken} at {file}:{line}")?;
        }
        Ok(())
    }
}

/// Runs `work`, and counts the locks that the current thread takes until `work` ends. If `work`
/// calls this function, the outer call does not count the locks of the inner call.
pub fn count<R>(work: impl FnOnce() -> R) -> (R, LockCounts) {
    let start = |counts| TAKEN.with_borrow_mut(|taken| replace(taken, counts));
    let outer = start(Some(LockCounts::default()));
    let result = work();
    let counted = start(outer);
    (result, counted.unwrap_or_default())
}

/// Counts one lock at the source line that takes it: the line that called `lock`, `try_lock`,
/// `read` or `write`.
#[track_caller]
pub(crate) fn add() {
    let caller = Location::caller();
    // While a thread ends, a destructor can take a lock after the thread's `TAKEN` was dropped.
    // Such a lock is not counted.
    let _ended = TAKEN.try_with(|taken| {
        if let Some(counts) = taken.borrow_mut().as_mut() {
            *counts.0.entry((caller.file(), caller.line())).or_default() += 1;
        }
    });
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{Mutex, RwLock};

    #[test]
    fn each_lock_is_counted_at_the_line_that_takes_it() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(2));
        *mutex.lock() += 1;
        let (sum, counted) = count(|| {
            let mut sum = 0;
            for _ in 0..3 {
                sum += *mutex.lock();
            }
            *lock.write() += 1;
            drop(mutex.try_lock());
            sum + *lock.read()
        });
        *mutex.lock() += 1;
        assert_eq!((sum, counted.total()), (9, 6));
        let by_line: Vec<_> = counted.0.values().copied().collect();
        assert_eq!(by_line, [3, 1, 1, 1]);
        assert_eq!(counted.by_file(), BTreeMap::from([(file!(), 6)]));
        assert!(
            counted
                .to_string()
                .starts_with(&format!("3 at {}:", file!()))
        );
    }

    #[test]
    fn locks_of_other_threads_are_not_counted() {
        let mutex = Mutex::new(0);
        let work = || thread::scope(|scope| drop(scope.spawn(|| *mutex.lock() += 1)));
        assert_eq!(count(work).1.total(), 0);
        assert_eq!(*mutex.lock(), 1);
    }

    #[test]
    fn a_nested_count_does_not_change_the_outer_count() {
        let mutex = Mutex::new(0);
        let (inner, outer) = count(|| {
            drop(mutex.lock());
            let inner = count(|| drop(mutex.lock())).1;
            drop(mutex.lock());
            inner
        });
        assert_eq!((inner.total(), outer.total()), (1, 2));
    }
}
