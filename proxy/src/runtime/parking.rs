//! Batching of wake-ups: a worker without work yields its core once before it sleeps.
//!
//! A proxy spends most of its CPU time on wake-ups of threads. If a worker sleeps after each
//! operation, the kernel must wake it for the next operation. If the worker yields instead, the
//! servers and clients on the same machine run, and the worker then finds several operations that
//! are ready. With 16 connections or more, this saves a fifth to a third of the CPU time per
//! operation.
//!
//! While few operations are in flight, workers do not yield, because there is nothing to batch. If
//! another process computes without a pause, a yield can last as long as the whole time slice of
//! that process. So after a yield that took too long, a worker sleeps several times without a
//! yield.

use std::{cell::Cell, thread::yield_now, time::Duration};

use tokio::{runtime::Builder, time::Instant};

/// Before a worker (a thread of a tokio runtime) sleeps, it yields its core to other threads. It
/// does so only if, on average, at least this number of operations is in flight for each worker.
const LEAST_IN_FLIGHT: usize = 4;

/// A yield that takes longer than this counts as too long: another process, which computes without
/// a pause, has got the core.
const LONGEST_YIELD: Duration = Duration::from_millis(2);

/// After a yield that took too long, a worker goes to sleep this many times without yielding first.
const PENALTY: u8 = 16;

thread_local! {
    /// Number of times that this thread still goes to sleep without yielding first.
    static SKIP: Cell<u8> = const { Cell::new(0) };
}

/// Makes the workers of a runtime yield their cores to other threads before they sleep, if enough
/// operations are in flight. `in_flight` returns the number of operations in flight.
pub(super) fn gather_wake_ups(
    builder: &mut Builder,
    workers: usize,
    in_flight: impl Fn() -> usize + Send + Sync + 'static,
) {
    let least = LEAST_IN_FLIGHT * workers;
    builder.on_thread_park(move || {
        if in_flight() >= least {
            yield_unless_penalised();
        }
    });
}

fn yield_unless_penalised() {
    match SKIP.get().checked_sub(1) {
        Some(left) => SKIP.set(left),
        None => {
            let began = Instant::now();
            yield_now();
            if began.elapsed() > LONGEST_YIELD {
                SKIP.set(PENALTY);
            }
        }
    }
}
