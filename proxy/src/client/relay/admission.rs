//! Limits for relayed clients (each has a server connection of its own) until they have logged in,
//! if their server requires a login. Such a client has a deadline for its login, or it counts as a
//! driver's monitor. The number of clients with a deadline is limited, and so is the number of
//! monitors. Clients that share pooled server connections count towards the same two limits.

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::guard::Relayed;
use crate::{
    client::{LoginDue, Shared},
    limits::{Eviction, HandshakePermit, MonitorPermit},
};
use seawall_transport::Sharer;

/// The permits and the login deadline of a relayed client that has not logged in.
pub(super) struct Admission<'a> {
    shared: &'a Shared,
    sharer: Sharer,
    eviction: Eviction,
    requires_login: bool,
    relayed: Relayed,
    /// True after the first hello of the connection. Only the first hello can make the client count
    /// as a monitor.
    has_greeted: bool,
    /// Counts the client towards the limit of clients that have not logged in. `None` if the client
    /// does not count (for example, if it is a monitor), or if no permit was left.
    handshake: Option<HandshakePermit>,
    /// Set while the client is a driver's monitor that has not logged in.
    monitor: Option<MonitorPermit>,
    /// Deadline of the login; `None` for clients that need not log in, have logged in, or are
    /// monitors.
    deadline: watch::Sender<Option<Instant>>,
}

impl<'a> Admission<'a> {
    /// Creates the admission of a client that has not logged in. `due` has the client's deadline
    /// and permit. If `due` is `None`, a new deadline begins. If the server requires no login, the
    /// client has no deadline. A client that is relayed because of its mechanism may have sent a
    /// hello before it was relayed.
    pub(super) fn new(
        shared: &'a Shared,
        sharer: Sharer,
        eviction: Eviction,
        due: Option<LoginDue>,
        requires_login: bool,
        relayed: Relayed,
    ) -> Self {
        let mut admission = Self {
            shared,
            sharer,
            eviction,
            requires_login,
            relayed,
            has_greeted: matches!(relayed, Relayed::OtherMechanisms),
            handshake: None,
            monitor: None,
            deadline: watch::Sender::new(None),
        };
        match (requires_login, due) {
            (false, _) => admission.admit(),
            (true, Some(due)) => {
                admission.handshake = due.permit;
                admission.deadline.send_replace(Some(due.deadline));
            }
            (true, None) => admission.require_login(),
        }
        admission
    }

    /// The clients that the relay serves.
    pub(super) fn relayed(&self) -> Relayed {
        self.relayed
    }

    /// True if the server requires a login.
    pub(super) fn requires_login(&self) -> bool {
        self.requires_login
    }

    /// True if the client is a driver's monitor that has not logged in.
    pub(super) fn is_monitor(&self) -> bool {
        self.monitor.is_some()
    }

    /// Records activity of the client. Called before the relay passes a request, and after it has
    /// passed or refused the request.
    pub(super) fn mark_activity(&self) {
        self.eviction.mark_activity();
    }

    /// The address or user towards which the client counts in limits that clients share.
    pub(super) fn sharer(&self) -> Sharer {
        self.sharer
    }

    /// Resolves when the login is overdue. If the deadline changes, waits for the new deadline.
    pub(super) fn overdue(&self) -> impl Future<Output = ()> + use<> {
        let mut deadline = self.deadline.subscribe();
        async move {
            loop {
                let until = *deadline.borrow_and_update();
                let changed = match until {
                    None => deadline.changed().await,
                    Some(until) => match timeout_at(until, deadline.changed()).await {
                        Ok(changed) => changed,
                        Err(_) => return,
                    },
                };
                if changed.is_err() {
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Records that the client has logged in or need not log in. Removes its deadline and frees its
    /// permits.
    pub(super) fn admit(&mut self) {
        self.handshake = None;
        self.monitor = None;
        self.deadline.send_replace(None);
        self.eviction.set_exempt(true);
    }

    /// Starts a new deadline for the client's login, for example because the client has logged out,
    /// or because a monitor begins to log in. Does nothing if the server requires no login.
    pub(super) fn require_login(&mut self) {
        if !self.requires_login {
            return;
        }
        self.monitor = None;
        let limits = &self.shared.limits;
        self.handshake = limits.admit_handshake(self.sharer, &self.eviction);
        let deadline = Instant::now() + self.shared.settings().authentication_timeout;
        self.deadline.send_replace(Some(deadline));
        self.eviction.set_exempt(false);
    }

    /// Records that a client begins to log in. Returns false if the client counted as a monitor
    /// until now and no permit is left for clients that have not logged in.
    pub(super) fn note_login(&mut self) -> bool {
        if self.monitor.is_some() {
            self.require_login();
            return self.handshake.is_some();
        }
        true
    }

    /// Records a hello of a client that has not logged in. The client counts as a monitor from now
    /// on, and loses its deadline, if all of these are true:
    ///
    /// - This is the first hello of the connection.
    /// - It looks like the hello of a monitor.
    /// - A permit for a monitor is available.
    ///
    /// Further hellos of a monitor renew its permit. A monitor may still log in, because the hello
    /// of a client with a mechanism other than SCRAM can look like that of a monitor.
    pub(super) fn note_hello(&mut self, is_from_monitor: bool) {
        if let Some(monitor) = &mut self.monitor {
            monitor.record_hello();
            return;
        }
        let is_first = !std::mem::replace(&mut self.has_greeted, true);
        if !is_from_monitor || !is_first {
            return;
        }
        let limits = &self.shared.limits;
        self.monitor = limits.admit_monitor(self.sharer, &self.eviction, Instant::now());
        if self.monitor.is_some() {
            self.handshake = None;
            self.deadline.send_replace(None);
            self.eviction.set_exempt(true);
        }
    }

    /// Renews the permit of a monitor when the reply to its hello arrives. A new hello also renews
    /// the permit, but a monitor sends no new hello while the server streams replies to it.
    pub(super) fn note_hello_reply(&mut self) {
        if let Some(monitor) = &mut self.monitor {
            monitor.record_hello();
        }
    }
}
