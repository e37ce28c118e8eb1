//! Batching of wake-ups: a worker without work yields its core once before it sleeps.
//!
//! Wake-ups are most of a proxy's cost. If a worker sleeps after each operation, the kernel wakes
//! it for the next one. If it yields instead, the servers and clients on the same machine make
//! progress, and the worker then finds several operations ready at once. From 16 connections on,
//! this saves a fifth to a third of the processor time per operation.
//!
//! Workers do not yield while few operations are in flight, because then there is nothing to batch.
//! Beside a process that never gives up its core, a yield can last that process's whole time slice.
//! So after a yield that took too long, a worker sleeps several times without a yield.

use std::{cell::Cell, thread::yield_now, time::Duration};

use tokio::{runtime::Builder, time::Instant};

/// Workers yield from this many operations in flight per worker.
const LEAST_IN_FLIGHT: usize = 4;

/// A longer yield went to a process that does not give the core back.
const LONGEST_YIELD: Duration = Duration::from_millis(2);

/// Number of sleeps without a yield after a yield that took too long.
const PENALTY: u8 = 16;

thread_local! {
    static SKIP: Cell<u8> = const { Cell::new(0) };
}

/// Makes the workers of a runtime yield before they sleep, while enough operations are in flight.
/// `in_flight` returns their number.
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
