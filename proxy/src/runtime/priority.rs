//! The scheduling policy and the priority of a thread.

/// The nice value of threads of low priority. While operations use all cores, each of these threads
/// gets about a tenth of the CPU time of the thread that serves clients on the same core.
#[cfg(target_os = "linux")]
pub(crate) const NICE: i32 = 10;

/// Lets this thread run only while a core has nothing else to do. If the system refuses this,
/// lowers the priority of the thread, as [`become_nice`] does.
#[cfg(target_os = "linux")]
pub(crate) fn become_idle() {
    use thread_priority::{
        NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
        set_thread_priority_and_policy, thread_native_id,
    };

    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    let this = thread_native_id();
    if let Err(error) = set_thread_priority_and_policy(this, ThreadPriority::Min, policy) {
        tracing::debug!(%error, "could not set the scheduling policy of a thread");
        become_nice();
    }
}

/// Lowers the priority of this thread.
#[cfg(target_os = "linux")]
pub(crate) fn become_nice() {
    // On Linux, this call changes only the priority of this thread. It fails if the process already
    // has a lower priority.
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "could not lower the priority of a thread");
    }
}

/// Does nothing: the scheduling policy of idle threads (`SCHED_IDLE`) exists only on Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) fn become_idle() {}

/// Does nothing: on systems other than Linux, the nice value belongs to the whole process.
#[cfg(not(target_os = "linux"))]
pub(crate) fn become_nice() {}
