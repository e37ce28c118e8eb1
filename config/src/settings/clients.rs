//! The authentication of clients, and the limits for them.

use std::num::NonZeroUsize;
use std::time::Duration;

use ipnet::IpNet;

use crate::declare::{keys, section};
use crate::kinds::{
    CONNECTIONS, ENTRIES, LARGEST_MESSAGE_BYTES, MAX_MEMORY_BYTES, MIN_MESSAGE_MEMORY_BYTES,
    TIMEOUT,
};
use crate::schema::KeyKind;
use crate::users::{self, User};
use crate::words::{Credentials, OtherMechanisms};

section! {
    /// How clients authenticate.
    "auth" => Auth;

    /// Source of the clients' credentials.
    credentials: Credentials = key("auth.credentials",
        Credentials::KIND, Restart, default "auto");
    // The limit determines how long a dropped user can still log in while the deployment is
    // unavailable.
    /// How long cached credentials are used after a server has last confirmed them.
    max_stale: Duration = key("auth.max_stale_ms",
        TIMEOUT, Live, default 300000, unit "ms");
    /// How long a client may take from connecting to the end of its login. The time for which
    /// Seawall itself delays the connection or the login in a storm does not count.
    authentication_timeout: Duration = key("auth.authentication_timeout_ms",
        TIMEOUT, Live, default 30000, unit "ms");
    // By default, clients with other mechanisms are refused, because each relayed client costs a
    // server connection.
    /// Handling of clients that log in by a mechanism other than SCRAM: refuse them, or relay each
    /// over its own server connection. X.509 is always refused.
    other_mechanisms: OtherMechanisms = key("auth.other_mechanisms",
        OtherMechanisms::KIND, Live, default "refuse");
    {
        /// The configured users, without duplicates; empty unless `credentials` is
        /// [`Credentials::Users`] or [`Credentials::Auto`].
        users: Vec<User> = users::read;
    }
}

section! {
    /// Limits of the memory, connections, logins, operations, cursors and transactions of clients;
    /// most limits apply to all clients together.
    "limits" => Limits;

    // Clients that have not logged in may use only little memory.
    /// Largest message of a client that has not logged in.
    pre_auth_message_bytes: usize = key("limits.pre_auth_message_bytes",
        KeyKind::Integer { min: 4_096, max: LARGEST_MESSAGE_BYTES }, Live,
        default 16384, unit "bytes");
    /// Maximum memory for the large messages of all clients together.
    message_memory_bytes: usize = key("limits.message_memory_bytes",
        KeyKind::Integer { min: MIN_MESSAGE_MEMORY_BYTES, max: MAX_MEMORY_BYTES }, Live,
        default 536870912, unit "bytes");
    // Each relayed client has a server connection of its own. So the default is the same as that of
    // `pool.max_server_connections`.
    /// Maximum number of clients that are relayed because of `auth.other_mechanisms`.
    relayed_connections: NonZeroUsize = key("limits.relayed_connections",
        CONNECTIONS, Live, default 500, unit "connections");
    // A client that does not read its reply must not use memory forever.
    /// How long a client may stall while reading a reply.
    client_write_idle_timeout: Duration = key("limits.client_write_idle_timeout_ms",
        TIMEOUT, Live, default 30000, unit "ms");
    /// Maximum number of open cursors that are pinned to their servers.
    max_cursors: NonZeroUsize = key("limits.max_cursors",
        ENTRIES, Live, default 100000, unit "cursors");
    /// Maximum number of open transactions that are pinned to their servers.
    max_transactions: NonZeroUsize = key("limits.max_transactions",
        ENTRIES, Live, default 100000, unit "transactions");
    // On current servers, a cursor of a session does not end after cursorTimeoutMillis, but with
    // its session. All drivers use sessions. The default is 5 min more than the default lifetime of
    // a session.
    /// How long the server of an unused cursor is remembered; must not be less than the servers'
    /// localLogicalSessionTimeoutMinutes and cursorTimeoutMillis.
    cursor_idle: Duration = key("limits.cursor_idle_ms",
        TIMEOUT, Live, default 2100000, unit "ms");
    // By default, servers end a transaction after 60 s. The default here is twice as long, so that
    // a commit can be retried even if the transaction has taken the full 60 s.
    /// How long the server of an unused transaction is remembered; should be twice the servers'
    /// transactionLifetimeLimitSeconds.
    transaction_idle: Duration = key("limits.transaction_idle_ms",
        TIMEOUT, Live, default 120000, unit "ms");
    // The limit protects the memory from clients that log in with invented user names.
    /// Maximum number of users whose credentials are cached.
    max_users: NonZeroUsize = key("limits.max_users",
        ENTRIES, Live, default 10000, unit "users");
    /// Maximum number of first logins, and of lookups of new users by the service account, that
    /// exchange messages with servers at the same time. Queries about users' mechanisms have a
    /// separate limit of the same size.
    introductions: NonZeroUsize = key("limits.introductions",
        KeyKind::Integer { min: 1, max: 1_000 }, Live, default 8, unit "logins");
    // Clients that never send their proofs must not block the first logins of other clients.
    /// Maximum number of first logins that wait for the client's proof, each on its own server
    /// connection. At the limit, further logins wait, and Seawall may end one of these first logins
    /// for a waiting login: the oldest one of the client address with the most. This address must
    /// have at least two more than the address of the waiting login, and the ended login must be at
    /// least 500 ms old.
    introduction_conversations: NonZeroUsize = key("limits.introduction_conversations",
        CONNECTIONS, Live, default 64, unit "connections");
    // If very many clients connect at once, the limit bounds the memory and the CPU time of their
    // logins. Further connections wait in the kernel (`listen.backlog`).
    /// Maximum number of client connections that have not logged in.
    unauthenticated_connections: NonZeroUsize = key("limits.unauthenticated_connections",
        CONNECTIONS, Live, default 4096, unit "connections");
    // Any client can pretend to be a monitor, so monitors must not use up all connections.
    /// Maximum number of connections of drivers' monitors, which never log in. One address gets at
    /// most eight ninths of this number. At the limit, Seawall closes a monitor of the address with
    /// the most monitors if it has sent no hello for ten minutes. Otherwise, it refuses the new
    /// monitor.
    monitor_connections: NonZeroUsize = key("limits.monitor_connections",
        CONNECTIONS, Live, default 8192, unit "connections");
    /// Maximum number of operations in flight, for all clients and servers together. Further
    /// operations wait. For commits, and other commands for which operations may wait, there are 8
    /// further permits.
    max_in_flight_operations: NonZeroUsize = key("limits.max_in_flight_operations",
        ENTRIES, Live, default 20000, unit "operations");
    /// Maximum number of connections per second from one address (IPv6: /64); further ones are
    /// closed before their first byte is read; 0 for no limit.
    connections_per_second_per_address: Option<u32> = key(
        "limits.connections_per_second_per_address",
        KeyKind::Integer { min: 0, max: 1_000_000 }, Live, default 0, unit "per second");
    /// Maximum number of logins per second of one user from one address (IPv6: /64), for successful
    /// and refused logins separately; further ones are delayed by at most 10 s; 0 for no limit.
    logins_per_second_per_user: Option<u32> = key("limits.logins_per_second_per_user",
        KeyKind::Integer { min: 0, max: 1_000_000 }, Live, default 0, unit "per second");
    /// IP addresses or ranges (such as 10.0.0.0/8) of load balancers, separated by commas; after
    /// login, Seawall counts the clients behind them by user instead of by address.
    shared_addresses: Vec<IpNet> = key("limits.shared_addresses",
        KeyKind::Text, Live, example "10.0.0.0/8,192.0.2.7");
}
