//! The two runtimes. Clients' operations run on a separate runtime, so that monitoring, metrics
//! scrapes and reports never delay them.

use std::{io, num::NonZero, ops::Deref, thread::available_parallelism};

use tokio::runtime::{Builder, Runtime};

use super::parking::gather_wake_ups;

/// Number of scheduler ticks after which a busy thread of the data plane polls its sockets. In one
/// tick, a thread runs one task and at most three tasks that this task wakes. When thousands of
/// clients connect at the same time, many tasks accept or close connections. With tokio's default
/// of 61, operations whose sockets are ready would wait for all these tasks.
const EVENT_INTERVAL: u32 = 16;

/// The runtimes of the data plane and the control plane.
#[derive(Debug)]
pub(crate) struct Planes {
    /// Number of threads of the data plane.
    pub workers: usize,
    /// The data plane: the runtime of client and server connections.
    pub data: Plane,
    /// The control plane: the runtime of all other tasks, except steps of TLS handshakes.
    pub control: Plane,
}

/// A runtime that can be dropped on a thread of another runtime, because the drop does not block
/// that thread.
#[derive(Debug)]
pub(crate) struct Plane(Option<Runtime>);

impl Planes {
    /// Starts the threads. The data plane has `workers` threads; `None` means one thread per core.
    /// `in_flight` returns the number of operations in flight.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn start(
        workers: Option<NonZero<usize>>,
        in_flight: impl Fn() -> usize + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let workers = match workers {
            Some(workers) => workers.get(),
            None => available_parallelism()?.get(),
        };
        let mut data = Builder::new_multi_thread();
        data.worker_threads(workers).event_interval(EVENT_INTERVAL);
        gather_wake_ups(&mut data, workers, in_flight);
        let data = data.thread_name("seawall-data").enable_all().build()?;
        let mut control = Builder::new_multi_thread();
        let control = control
            .worker_threads(1)
            .thread_name("seawall-control")
            .enable_all();
        Ok(Self {
            workers,
            data: Plane::new(data),
            control: Plane::new(control.build()?),
        })
    }
}

impl Plane {
    /// Wraps a runtime.
    pub(crate) fn new(runtime: Runtime) -> Self {
        Self(Some(runtime))
    }
}

impl Deref for Plane {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.0.as_ref().expect("a plane has a runtime")
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
