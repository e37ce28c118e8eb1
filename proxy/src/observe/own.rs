//! CPU time by thread, resident memory and descriptors of this process, as the operating system
//! reports them.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::Path,
    time::Duration,
};

/// Resident memory of the process in bytes; `None` if the system does not report it.
pub(crate) fn resident_bytes() -> Option<usize> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size())
}

/// Number of open descriptors of the process. Linux before 6.2 does not report this number. In that
/// case, the function counts the descriptors if `may_count` is true, else it returns `None`.
/// Counting takes milliseconds for 10,000 descriptors.
///
/// Source: `/proc/PID/fd`, proc(5): since Linux 6.2, the size of the folder is the number of
/// descriptors.
pub(crate) fn open_descriptors(may_count: bool) -> Option<usize> {
    const FOLDER: &str = "/proc/self/fd";
    let size = usize::try_from(fs::metadata(FOLDER).ok()?.len()).ok()?;
    match size {
        0 if may_count => Some(fs::read_dir(FOLDER).ok()?.count()),
        0 => None,
        size => Some(size),
    }
}

/// CPU time that threads used between their last measurement and their end is reported under this
/// name. All other CPU time is reported under the names of the threads.
const ENDED: &str = "ended";

/// CPU time by thread name. No value ever falls, because the time of ended threads is kept.
#[derive(Debug, Default)]
pub(super) struct CpuTimes {
    by_name: BTreeMap<String, Duration>,
    /// CPU time that threads used between their last measurement and their end. The value is the
    /// largest difference so far between the CPU time of the process and the sum of `by_name`.
    ended: Duration,
    /// CPU time of each live thread at the last measurement.
    seen: HashMap<ThreadId, Duration>,
}

impl CpuTimes {
    /// Adds the CPU time that the threads have used since the last call.
    pub(super) fn measure(&mut self) {
        // `ended` is the CPU time of the process minus the CPU times of its threads. The process is
        // measured first, so that `ended` never includes the time of a live thread.
        let process = process_cpu();
        self.add(process, threads());
    }

    /// CPU time by thread name. The CPU time that threads used between their last measurement and
    /// their end has the name [`ENDED`].
    pub(super) fn by_thread(&self) -> impl Iterator<Item = (&str, Duration)> {
        let by_name = self.by_name.iter().map(|(name, time)| (&**name, *time));
        by_name.chain([(ENDED, self.ended)])
    }

    /// Adds the results of [`process_cpu`] and [`threads`]. If a time could not be read, for
    /// example because the process has no descriptor left, a later call adds it.
    fn add(&mut self, process: Option<Duration>, threads: Option<Vec<(ThreadId, Option<Thread>)>>) {
        let Some(threads) = threads else { return };
        let mut seen = HashMap::with_capacity(threads.len());
        let mut is_complete = true;
        for (id, thread) in threads {
            let before = self.seen.get(&id).copied();
            let Some(Thread { name, on_cpu }) = thread else {
                is_complete = false;
                seen.extend(before.map(|before| (id, before)));
                continue;
            };
            let before = before.unwrap_or_default();
            // If a thread has used less time than at the last measurement, it is a new thread with
            // a reused id.
            let used = on_cpu.checked_sub(before).unwrap_or(on_cpu);
            *self.by_name.entry(name).or_default() += used;
            seen.insert(id, on_cpu);
        }
        self.seen = seen;
        let measured = self.by_name.values().sum();
        // If a live thread was not read, its time would count as the time of ended threads. So
        // `ended` changes only if all threads were read.
        let ended = process
            .filter(|_| is_complete)
            .map(|process| process.saturating_sub(measured));
        self.ended = self.ended.max(ended.unwrap_or_default());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ThreadId(u32);

#[derive(Debug)]
struct Thread {
    name: String,
    on_cpu: Duration,
}

/// The live threads; `None` if the system does not list them. A thread whose files cannot be read
/// now has only its id. Threads without these files, for example because they have just ended, are
/// skipped.
fn threads() -> Option<Vec<(ThreadId, Option<Thread>)>> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    let thread = |task: io::Result<fs::DirEntry>| {
        let task = task.ok()?;
        let id = ThreadId(task.file_name().to_str()?.parse().ok()?);
        Some(match read_thread(&task.path()) {
            Ok(thread) => Some((id, Some(thread))),
            Err(error) => (!has_ended(&error)).then_some((id, None)),
        })
    };
    let threads: Option<Vec<_>> = tasks.map(thread).collect();
    Some(threads?.into_iter().flatten().collect())
}

/// True if a file of a thread does not exist. Reading an open file of a thread that has ended fails
/// with ESRCH.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Reads the name and the CPU time of a thread. `folder` is the folder of the thread in
/// `/proc/self/task`.
///
/// Source: `/proc/<pid>/schedstat` in the file `Documentation/scheduler/sched-stats.rst` of the
/// Linux kernel: the time on the CPU comes first, in nanoseconds.
fn read_thread(folder: &Path) -> io::Result<Thread> {
    let read = |file: &str| fs::read_to_string(folder.join(file));
    let (name, schedule) = (read("comm")?, read("schedstat")?);
    let on_cpu = schedule.split(' ').next().and_then(|of| of.parse().ok());
    let on_cpu = on_cpu.ok_or(io::ErrorKind::InvalidData)?;
    Ok(Thread {
        name: name.trim().to_owned(),
        on_cpu: Duration::from_nanos(on_cpu),
    })
}

/// CPU time of all threads of the process, including ended threads, rounded down to clock ticks.
///
/// Source: `/proc/PID/stat`, proc(5): `utime` and `stime` are the fields 14 and 15. The second
/// field is the process name in parentheses. This name may contain any characters, also spaces and
/// parentheses.
pub(crate) fn process_cpu() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut times = after_name.split(' ').skip(11);
    let mut ticks = || times.next()?.parse::<u64>().ok();
    let ticks = ticks()? + ticks()?;
    let nanoseconds_a_tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_nanos(ticks.checked_mul(nanoseconds_a_tick)?))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    const BUSY: &str = "seawall-busy";

    fn read_threads() -> Vec<Thread> {
        let threads = threads().into_iter().flatten();
        threads.filter_map(|(_, thread)| thread).collect()
    }

    fn thread(id: u32, name: &str, seconds: u64) -> (ThreadId, Option<Thread>) {
        let thread = Thread {
            name: name.to_owned(),
            on_cpu: Duration::from_secs(seconds),
        };
        (ThreadId(id), Some(thread))
    }

    #[test]
    fn the_total_cpu_time_includes_threads_that_have_ended() {
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let busy = std::thread::Builder::new().name(BUSY.to_owned());
        let thread = busy.spawn(move || {
            let digest = (0..2_000_000_u64).fold(0, |sum: u64, n| sum.rotate_left(5) ^ n);
            wait.recv().ok();
            digest
        });
        let mut times = CpuTimes::default();
        let used = |times: &CpuTimes| times.by_name.get(BUSY).copied().unwrap_or_default();
        while used(&times) == Duration::ZERO {
            std::thread::yield_now();
            times.measure();
        }
        let before = used(&times);
        drop(stop);
        thread.unwrap().join().unwrap();
        while read_threads().iter().any(|thread| thread.name == BUSY) {
            std::thread::yield_now();
        }
        times.measure();
        assert!(used(&times) >= before);
        assert!(!times.seen.is_empty());
    }

    #[test]
    fn each_open_file_is_counted_as_a_descriptor() {
        // Other tests in this process also open and close files, so the exact number is unknown.
        let files: Vec<_> = (0..300)
            .map(|_| fs::File::open("/dev/null").unwrap())
            .collect();
        assert!(open_descriptors(true).is_some_and(|number| number >= files.len()));
    }

    #[test]
    fn cpu_times_never_fall_when_threads_start_and_end() {
        let seconds = Duration::from_secs;
        let mut times = CpuTimes::default();
        let mut measure = |process: Option<u64>, threads: &[(u32, &str, u64)]| {
            let threads = threads
                .iter()
                .map(|&(id, name, on_cpu)| thread(id, name, on_cpu));
            times.add(process.map(seconds), Some(threads.collect()));
            let name = |name: &str| times.by_name.get(name).map_or(0, Duration::as_secs);
            [name("a"), name("b"), name("c"), times.ended.as_secs()]
        };
        let first = [(1, "a", 3), (2, "b", 5), (3, "b", 1)];
        assert_eq!(measure(Some(10), &first), [3, 6, 0, 1]);
        // Thread 3 has ended. Other threads have started and ended between two measurements.
        assert_eq!(measure(Some(15), &[(1, "a", 4), (2, "b", 6)]), [4, 7, 0, 4]);
        // A new thread has the id of the ended thread 2. In this measurement, the CPU time of the
        // process lags behind the CPU times of its threads. In the next measurement, the CPU time
        // of the process is unknown.
        assert_eq!(measure(Some(15), &[(1, "a", 4), (2, "c", 2)]), [4, 7, 2, 4]);
        assert_eq!(measure(None, &[(1, "a", 5)]), [5, 7, 2, 4]);
        // A thread that changes its name after its start is not counted twice.
        assert_eq!(measure(Some(20), &[(4, "a", 1)]), [6, 7, 2, 5]);
        assert_eq!(measure(Some(22), &[(4, "c", 3)]), [6, 7, 4, 5]);
    }

    #[test]
    fn cpu_time_that_could_not_be_read_is_counted_once_by_a_later_measurement() {
        let mut times = CpuTimes::default();
        let mut measure = |process: u64, threads| {
            times.add(Some(Duration::from_secs(process)), threads);
            let name = |name: &str| times.by_name.get(name).map_or(0, Duration::as_secs);
            [name("a"), name("b"), times.ended.as_secs()]
        };
        let first = Some(vec![thread(1, "a", 10), thread(2, "b", 5)]);
        assert_eq!(measure(15, first), [10, 5, 0]);
        assert_eq!(measure(17, None), [10, 5, 0]);
        let partial = Some(vec![(ThreadId(1), None), thread(2, "b", 6)]);
        assert_eq!(measure(18, partial), [10, 6, 0]);
        let all = Some(vec![thread(1, "a", 13), thread(2, "b", 6)]);
        assert_eq!(measure(19, all), [13, 6, 0]);
    }

    #[test]
    fn process_cpu_time_and_memory_are_converted_from_ticks_and_pages() {
        let spin = || (0..2_000_000_u64).fold(0, |sum: u64, n| sum.rotate_left(5) ^ n);
        while process_cpu().unwrap() < Duration::from_millis(100) {
            std::hint::black_box(spin());
        }
        let by_thread: Duration = read_threads().iter().map(|thread| thread.on_cpu).sum();
        // `process_cpu` is rounded down to clock ticks, so it may be less than the sum of the
        // threads' CPU times. More than 100 ms were used, so `process_cpu` cannot be less than half
        // of the sum.
        assert!(process_cpu().unwrap() * 2 >= by_thread);
        assert!(resident_bytes().unwrap() > 1 << 20);
    }
}
