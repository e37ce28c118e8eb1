//! A load at a fixed rate: operations are sent when they are due, and late ones at once, so that a stall is followed by
//! what it held up.

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

use super::link::{Link, Target};

/// How much is sent.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Connections, which take turns.
    pub connections: u32,
    /// Operations a second, of all of them.
    pub per_second: f64,
}

/// An operation that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// When it was sent, after the load began.
    pub at: Duration,
    /// Until its reply was there.
    pub took: Duration,
}

/// A load that runs until it is ended.
#[derive(Debug)]
#[must_use = "it goes on until it is ended"]
pub struct Paced {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<Vec<Answered>>,
    began: Instant,
}

impl Paced {
    /// Connects, and begins. `source` makes what a connection, given by its number, sends: a message for each call.
    pub async fn start<S>(target: &Target, rate: Rate, source: impl Fn(u32) -> S) -> Self
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

    /// When it began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Ends it, and tells what was answered.
    ///
    /// # Panics
    /// If something was not.
    pub async fn end(mut self) -> Vec<Answered> {
        self.stop.store(true, Ordering::Relaxed);
        let mut answered = Vec::new();
        while let Some(of_one) = self.tasks.join_next().await {
            answered.extend(of_one.expect("everything was answered"));
        }
        answered
    }
}

/// When one connection sends.
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
) -> Vec<Answered> {
    let mut answered = Vec::new();
    let mut due = schedule.began + schedule.first;
    loop {
        sleep_until(due).await;
        if stop.load(Ordering::Relaxed) {
            return answered;
        }
        let message = source();
        let sent_at = Instant::now();
        link.run(&message).await;
        answered.push(Answered {
            at: sent_at.duration_since(schedule.began),
            took: sent_at.elapsed(),
        });
        due += schedule.every;
    }
}
