//! A load at a fixed rate. If the time at which an operation is due has already passed, the
//! operation is sent at once. So operations that were due during a stall are sent directly after
//! the stall.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::link::{Link, LinkTarget};

/// The rate of a load.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Number of connections. Consecutive operations are sent on different connections.
    pub connections: u32,
    /// Operations per second of all connections together.
    pub per_second: f64,
}

/// An operation that got its reply.
#[derive(Clone, Copy, Debug)]
pub struct CompletedOperation {
    /// Time from the start of the load until the operation was sent.
    pub at: Duration,
    /// Time from sending the operation to the end of the reply.
    pub took: Duration,
}

/// A load that runs until [`Paced::end`] is called.
#[derive(Debug)]
#[must_use = "the load runs until it is ended"]
pub struct Paced {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<Vec<CompletedOperation>>,
    began: Instant,
}

impl Paced {
    /// Connects and starts the load. `source` gets the index of a connection, and returns a
    /// function that returns the next message of this connection.
    pub async fn start<S>(target: &LinkTarget, rate: Rate, source: impl Fn(u32) -> S) -> Self
    where
        S: FnMut() -> Vec<u8> + Send + 'static,
    {
        let mut links = Vec::new();
        for _ in 0..rate.connections {
            links.push(Link::connect(target).await);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let began = Instant::now();
        let between = Duration::from_secs_f64(1.0 / rate.per_second);
        let mut tasks = JoinSet::new();
        for (number, link) in (0..).zip(links) {
            let schedule = Schedule {
                began,
                first: between * number,
                every: between * rate.connections,
            };
            tasks.spawn(one(link, source(number), schedule, Arc::clone(&stop)));
        }
        Self { stop, tasks, began }
    }

    /// The time when the load began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Ends the load. Returns all operations; each has got a reply.
    ///
    /// # Panics
    /// If an operation got no reply.
    pub async fn end(mut self) -> Vec<CompletedOperation> {
        self.stop.store(true, Ordering::Relaxed);
        let mut completed = Vec::new();
        while let Some(of_one) = self.tasks.join_next().await {
            completed.extend(of_one.expect("every operation got a reply"));
        }
        completed
    }
}

/// The times at which one connection must send its messages.
struct Schedule {
    began: Instant,
    first: Duration,
    every: Duration,
}

async fn one(
    mut link: Link,
    mut source: impl FnMut() -> Vec<u8>,
    schedule: Schedule,
    stop: Arc<AtomicBool>,
) -> Vec<CompletedOperation> {
    let mut completed = Vec::new();
    let mut due = schedule.began + schedule.first;
    loop {
        sleep_until(due).await;
        if stop.load(Ordering::Relaxed) {
            return completed;
        }
        let message = source();
        let sent_at = Instant::now();
        link.run(&message).await;
        completed.push(CompletedOperation {
            at: sent_at.duration_since(schedule.began),
            took: sent_at.elapsed(),
        });
        due += schedule.every;
    }
}
