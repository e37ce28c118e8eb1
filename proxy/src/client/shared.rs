//! The state that all clients share, grouped by the part of the work that needs it.

use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use bson::oid::ObjectId;
use tokio::{sync::watch, time::Instant};

use super::{ClientSettings, credentials::Credentials, fault::Fault, own_command::Reporter};
use crate::{
    captures::Captures,
    limits::{Gate, Limits, LoginGates},
    observe::{ClientDirectory, Recorder},
    pins::Pins,
    pool::ServerPool,
    runtime::{Activity, Lateness, OccasionalLog},
    topology::Topology,
};
use seawall_auth::NonceSource;
use seawall_transport::MemoryBudget;

/// State shared by all clients.
#[derive(Debug)]
pub struct Shared {
    /// Settings that apply to all clients.
    pub current_settings: ArcSwap<ClientSettings>,
    /// `serviceId` in replies to load-balanced clients: it identifies this process.
    pub service_id: ObjectId,
    /// Counts operations and events, for the metrics and the HTTP API.
    pub recorder: Arc<Recorder>,
    /// The directory of connected clients.
    pub clients: Arc<ClientDirectory>,
    /// The captures: recordings of the messages of some clients.
    pub captures: Arc<Captures>,
    /// Limits on clients, logins, operations and CPU-heavy work.
    pub limits: Limits,
    /// Delays new clients while the data plane (the threads that serve clients) runs its tasks
    /// late.
    pub arrivals: Arrivals,
    /// The parts of Seawall that check logins.
    pub logins: Logins,
    /// Finds the server of an operation.
    pub routing: Routing,
    /// Limits the memory of messages.
    pub memory: MessageMemory,
    /// Replies to the command `seawall`. Not set while Seawall is starting.
    pub reporter: OnceLock<Reporter>,
    /// End of the drain; `None` while Seawall is not draining.
    pub draining: watch::Receiver<Option<Instant>>,
}

impl Shared {
    /// The settings that apply to all clients now. Do not keep them across an `await`, because a
    /// reload replaces them.
    pub(crate) fn settings(&self) -> Guard<Arc<ClientSettings>> {
        self.current_settings.load()
    }
}

/// Delays new clients while the data plane (the threads that serve clients) runs its tasks late.
#[derive(Debug)]
pub struct Arrivals {
    /// The gate that new clients pass.
    pub gate: Gate,
    /// How late the tasks on the threads that serve clients run.
    pub lateness: Lateness,
    /// Records arrivals of clients. Periodic tasks run rarely in idle times, and frequently again
    /// after an arrival.
    pub activity: Activity,
}

/// The parts of Seawall that check logins.
#[derive(Debug)]
pub struct Logins {
    /// Users and their keys.
    pub credentials: Arc<Credentials>,
    /// Gates that delay logins while operations wait too long for connections.
    pub gates: LoginGates,
    /// The generator of nonces for logins.
    pub nonces: Arc<NonceSource>,
}

/// Finds the server of an operation.
#[derive(Debug)]
pub struct Routing {
    /// The view of the deployment, from which servers are selected.
    pub topology: Arc<Topology>,
    /// The pins: for each cursor and transaction of the clients, the server that has it.
    pub pins: Pins<Arc<ServerPool>>,
    /// The pins of relayed clients: for each cursor the operation that opened it, and for each
    /// session its last write.
    pub relay_pins: Pins<()>,
    /// The fault to inject, if any.
    pub fault: ArcSwapOption<Fault>,
    /// Counts operations on cursors that this instance does not know. At most one a minute is
    /// logged.
    pub(crate) foreign_cursors: OccasionalLog,
    /// Counts operations in transactions that this instance does not know. At most one a minute is
    /// logged.
    pub(crate) foreign_transactions: OccasionalLog,
    /// Counts failed logins of Seawall at servers, unless a server refused the user's keys. At most
    /// one a minute is logged.
    pub(crate) failed_logins: OccasionalLog,
    /// Counts connections that Seawall's own host could not open. At most one a minute is logged.
    pub(crate) local_failures: OccasionalLog,
    /// Counts replies that could not be forwarded. At most one a minute is logged.
    pub(crate) unforwarded_replies: OccasionalLog,
}

/// Limits the memory of messages.
///
/// Requests and replies have separate budgets. An operation that has memory for its request may
/// wait for memory for its reply. With a single budget, operations in this state could wait for
/// each other forever.
#[derive(Debug)]
pub struct MessageMemory {
    /// Memory for large requests.
    pub requests: MemoryBudget,
    /// Memory for large replies: for replies that must be in memory as a whole before they are
    /// forwarded, and for bytes that slow clients have not read yet.
    pub replies: MemoryBudget,
}

impl MessageMemory {
    /// Divides `bytes` equally between requests and replies.
    pub(crate) fn of_bytes(bytes: usize) -> Self {
        Self {
            requests: MemoryBudget::of_bytes(bytes / 2),
            replies: MemoryBudget::of_bytes(bytes / 2),
        }
    }

    /// Changes the memory: divides `bytes` equally between requests and replies.
    pub(crate) fn set_bytes(&self, bytes: usize) {
        self.requests.set_bytes(bytes / 2);
        self.replies.set_bytes(bytes / 2);
    }
}
