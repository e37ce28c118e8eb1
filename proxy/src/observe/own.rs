//! Seawall itself: CPU by thread, memory by owner, how late its event loops are, what statistics had to leave out.

use std::{collections::BTreeMap, fs, time::Duration};

use metrics::Label;

use super::{Observer, Place, metric_name::MetricName};
use crate::shape::ShapeId;

/// What takes memory, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The label.
    pub owner: &'static str,
    /// Bytes.
    pub bytes: usize,
}

impl Observer {
    /// A task of a runtime was woken so much later than it had asked for.
    pub fn event_loop_late(&self, plane: &'static str, delay: Duration) {
        let labels = vec![Label::new("plane", plane)];
        let name = MetricName::EventLoopDelaySeconds;
        self.exporter
            .histogram(name, labels)
            .record(delay.as_secs_f64());
    }

    /// Brings the figures of the process up to date. Called once a second.
    pub fn look_at_self(&self, memory: &[Memory], history_dropped: u64) {
        let tables = Memory {
            owner: "tables",
            bytes: self.table_bytes(),
        };
        let resident = resident_bytes().map(|bytes| Memory {
            owner: "process",
            bytes,
        });
        for Memory { owner, bytes } in memory.iter().copied().chain([tables]).chain(resident) {
            let labels = vec![Label::new("owner", owner)];
            let name = MetricName::MemoryBytes;
            self.exporter.gauge(name, labels).set(float(bytes));
        }
        for (thread, time) in cpu_by_thread() {
            let labels = vec![Label::new("thread", thread)];
            let name = MetricName::ThreadCpuSeconds;
            self.exporter.gauge(name, labels).set(time.as_secs_f64());
        }
        let left_out = self.slow_log_left_out();
        for (name, count) in [
            (MetricName::SlowLogLeftOutTotal, left_out),
            (MetricName::HistoryDroppedTotal, history_dropped),
        ] {
            self.exporter.counter(name, vec![]).absolute(count);
        }
    }

    /// What rows and their sums take, by their number and usual size.
    fn table_bytes(&self) -> usize {
        let collected = self.collected.lock();
        let remembered = self
            .shards
            .iter()
            .map(|shard| shard.lock().places.capacity());
        let remembered = remembered.sum::<usize>() * size_of::<((ShapeId, bool), Place)>();
        self.registry.lock().bytes() + collected.bytes() + self.names.bytes() + remembered
    }
}

fn float(bytes: usize) -> f64 {
    // Memory is far under 2^53 bytes.
    u32::try_from(bytes / 1024).map_or(f64::NAN, |kibibytes| f64::from(kibibytes) * 1024.0)
}

/// Resident memory of the process; `None` where the system does not tell.
fn resident_bytes() -> Option<usize> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size())
}

/// CPU time so far by the names of threads; those that have ended are no longer in it. Empty where the system does not
/// tell.
///
/// Source: `/proc/PID/task/TID/schedstat`, proc(5): time on the CPU in nanoseconds comes first.
fn cpu_by_thread() -> BTreeMap<String, Duration> {
    let mut times = BTreeMap::new();
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return times;
    };
    for task in tasks.flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file));
        // A thread may end between two lines.
        let (Ok(name), Ok(schedule)) = (read("comm"), read("schedstat")) else {
            continue;
        };
        let on_cpu = schedule.split(' ').next().and_then(|ns| ns.parse().ok());
        let time = times.entry(name.trim().to_owned()).or_default();
        *time += Duration::from_nanos(on_cpu.unwrap_or(0));
    }
    times
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn threads_are_told_by_name_and_memory_by_the_page() {
        let (told, wait) = std::sync::mpsc::channel::<()>();
        let busy = std::thread::Builder::new().name("seawall-busy".to_owned());
        let thread = busy.spawn(move || {
            let digest = (0..2_000_000_u64).fold(0, |sum: u64, n| sum.rotate_left(5) ^ n);
            wait.recv().ok();
            digest
        });
        let has_worked = || cpu_by_thread().get("seawall-busy").copied() > Some(Duration::ZERO);
        while !has_worked() {
            std::thread::yield_now();
        }
        drop(told);
        thread.unwrap().join().unwrap();
        assert!(resident_bytes().unwrap() > 1 << 20);
    }
}
