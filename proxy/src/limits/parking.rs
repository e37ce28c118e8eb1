//! Letting wake-ups gather: a worker without work yields its core once before it sleeps.
//!
//! Most of what a proxy costs are wake-ups. When a worker sleeps after each operation, the kernel wakes it for
//! the next; when it steps aside for a moment instead, the servers and clients that share the machine get
//! forward, and it finds several operations ready at once: a fifth to a third less processor time an operation
//! from 16 connections on. With few operations under way there is nothing to gather, and beside a process that
//! never gives up its core a yield can last its whole time slice, so both are told and left alone.

use std::{cell::Cell, thread::yield_now, time::Duration};

use tokio::{runtime::Builder, time::Instant};

use super::OperationPlaces;

/// Operations under way, a worker, from which on they gather.
const LEAST_IN_FLIGHT: usize = 4;

/// A yield that took longer went to somebody who does not give the core back.
const LONGEST_YIELD: Duration = Duration::from_millis(2);

/// Sleeps without a yield after one that took too long.
const PENALTY: u8 = 16;

thread_local! {
    static SKIP: Cell<u8> = const { Cell::new(0) };
}

/// Has the workers of a runtime yield before they sleep, while enough operations are under way.
pub fn gather_wake_ups(builder: &mut Builder, workers: usize, operations: &OperationPlaces) {
    let operations = operations.clone();
    let least = LEAST_IN_FLIGHT * workers;
    builder.on_thread_park(move || {
        if operations.in_flight() >= least {
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
