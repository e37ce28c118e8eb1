//! Functions for the service manager systemd: they send notifications, feed its watchdog, and take
//! the sockets that it has bound. Without a service manager, they have no effect.
//!
//! Source: <https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html>.

use std::{
    io,
    thread::{self, park_timeout},
    time::Duration,
};

use listenfd::ListenFd;
use sd_notify::{NotifyState, notify, watchdog_enabled};

use crate::{
    app::App,
    listener::{Inherited, InheritedSocket},
};

/// Tells the service manager that Seawall accepts clients.
pub(super) fn notify_ready() {
    send(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

/// Tells the service manager that a reload has begun. [`notify_reloaded`] must follow, because the
/// service manager waits for it.
pub(super) fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "could not read the monotonic clock"),
    }
}

/// Tells the service manager that a reload has ended.
pub(super) fn notify_reloaded(is_applied: bool) {
    let status = match is_applied {
        true => "serving",
        false => "serving; the last reload failed, see the log",
    };
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Tells the service manager that Seawall drains and then ends.
pub(super) fn notify_stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = notify(states) {
        tracing::debug!(%error, "could not notify the service manager");
    }
}

/// Maximum time between two checks of the runtimes' threads. Each check gives a new task to each
/// runtime that has run its earlier tasks, and feeds the watchdog only if both runtimes have run
/// their earlier tasks. With a shorter interval, Seawall notices earlier that the threads make no
/// progress.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// If the service manager has a watchdog, starts a thread that feeds the watchdog while the threads
/// of `app` make progress. Busy runtimes do not delay this thread, as they would delay a task.
/// Checks are at most one second apart, so a short pause of the threads does no harm: the service
/// manager ends the process only if the threads make no progress for almost the whole time limit of
/// the watchdog.
///
/// # Errors
/// If the thread cannot be started.
pub(super) fn feed_watchdog(app: &App) -> io::Result<()> {
    let Some(limit) = watchdog_enabled().filter(|limit| !limit.is_zero()) else {
        return Ok(());
    };
    let mut progress = app.progress_check();
    let feeding = move || {
        loop {
            if progress.check() {
                send(&[NotifyState::Watchdog]);
            }
            park_timeout(MAX_CHECK_INTERVAL.min(limit / 3));
        }
    };
    thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(feeding)
        .map(drop)
}

/// The environment variable with the names of the sockets that the service manager has bound: in
/// the order of the sockets, separated by colons (`sd_listen_fds_with_names(3)`).
const SOCKET_NAMES: &str = "LISTEN_FDNAMES";

/// Takes the sockets that the service manager has bound for clients.
///
/// # Errors
/// If a descriptor is not a listening socket.
pub(super) fn inherited_sockets() -> io::Result<Vec<Inherited>> {
    let mut sockets = ListenFd::from_env();
    let names = std::env::var(SOCKET_NAMES).unwrap_or_default();
    let mut names = names.split(':');
    let mut inherited = Vec::new();
    for index in 0..sockets.len() {
        let name = names.next().unwrap_or_default().to_owned();
        // If the socket is not a TCP socket, this call fails and leaves the socket at its index.
        let taken = match sockets.take_tcp_listener(index) {
            Ok(socket) => socket.map(InheritedSocket::Tcp),
            Err(_) => sockets
                .take_unix_listener(index)?
                .map(InheritedSocket::Unix),
        };
        inherited.extend(taken.map(|socket| Inherited { name, socket }));
    }
    Ok(inherited)
}
