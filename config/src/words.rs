//! The words that some keys accept as their values. Each set of words is an enum.

use std::num::NonZeroU32;

use toml::Value;

use crate::declare::words;
use crate::kinds::MAX_CONNECTIONS;
use crate::read::{Given, Setting, parts};
use crate::schema::Kind;

words! {
    /// An event that begins a capture.
    CaptureEvent {
        /// A storm of clients began.
        Storm = "storm",
        /// A stall was detected.
        Stall = "stall",
        /// The operations of a shape became slower or faster, or the shape is new.
        Change = "change",
    }
}

words! {
    /// The pseudonyms that replace the values of users in captures.
    CaptureRedaction {
        /// Values are recorded unchanged.
        None = "none",
        /// Pseudonyms keep the type, the length and the equality of values.
        Equality = "equality",
        /// Pseudonyms also keep the order of numbers and dates, and equal prefixes of strings
        /// stay equal.
        Ordered = "ordered",
    }
}

words! {
    /// A compressor of the MongoDB protocol.
    Compressor {
        /// Fast, but compresses less than the other two.
        Snappy = "snappy",
        /// The best compression for its CPU time.
        Zstd = "zstd",
        /// Supported by the oldest clients.
        Zlib = "zlib",
    }
}

/// The events that begin a capture, separated by commas.
impl Setting for Vec<CaptureEvent> {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let mut events = Self::new();
        for text in parts(given.text(value)?) {
            match CaptureEvent::named(text) {
                Some(event) => events.push(event),
                None => given.add(
                    text,
                    "must be one or more of storm, stall and change, joined by commas",
                ),
            }
        }
        Some(events)
    }

    fn absent() -> Option<Self> {
        Some(Self::new())
    }
}

impl Setting for Vec<Compressor> {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let joined = given.text(value)?;
        let mut compressors = Self::new();
        for name in joined.split(',').filter(|_| joined != "disabled") {
            match Compressor::named(name.trim()) {
                Some(compressor) if !compressors.contains(&compressor) => {
                    compressors.push(compressor);
                }
                _ => {
                    given.add(
                        joined,
                        "must be \"disabled\", or some of snappy, zstd and zlib, each once, joined by commas",
                    );
                    break;
                }
            }
        }
        Some(compressors)
    }
}

words! {
    /// How clients are served.
    Mode {
        /// Seawall authenticates clients and runs each operation on a pooled connection of the
        /// client's user.
        Pooled = "pooled",
        /// Each client connection has its own server connection. All bytes pass unchanged, and
        /// Seawall only observes them.
        Relay = "relay",
    }
}

words! {
    /// Use of the PROXY protocol by load balancers in front of Seawall.
    ProxyProtocol {
        /// Clients connect directly.
        Off = "off",
        /// Each connection begins with a header that has the client's address.
        Accept = "accept",
    }
}

words! {
    /// Use of TLS by clients.
    TlsMode {
        /// Clients must use TLS.
        Require = "require",
        /// Clients may use TLS, or connect without it.
        Prefer = "prefer",
    }
}

words! {
    /// Handling of clients' certificates.
    ClientCertificate {
        /// No certificate is requested.
        None = "none",
        /// A certificate is requested, and verified if the client sends one.
        Optional = "optional",
        /// Each client must send a valid certificate.
        Required = "required",
    }
}

words! {
    /// Source of the clients' credentials.
    Credentials {
        /// Like `lookup` if the connection string has a service account. Otherwise like `users` if
        /// users are configured. Otherwise like `self`, or like `none` if the deployment has no
        /// access control.
        Auto = "auto",
        /// Seawall reads each user's credentials through the user's first login.
        Own = "self",
        /// The service account of the connection string reads the credentials of all users.
        Lookup = "lookup",
        /// The configuration contains the users and their credentials.
        Users = "users",
        /// Clients need no credentials, because the deployment has no access control.
        None = "none",
    }
}

words! {
    /// Handling of clients that log in by a mechanism other than SCRAM.
    OtherMechanisms {
        /// The client gets the error that the mechanism is not enabled.
        Refuse = "refuse",
        /// The client gets its own server connection. Its login and all other messages pass
        /// unchanged.
        Relay = "relay",
    }
}

/// The limit of the operations that run on one server at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// Seawall finds the limit by measuring the server's throughput.
    Auto,
    /// The limit is this number of operations.
    Fixed(NonZeroU32),
    /// There is no limit.
    Off,
}

impl Concurrency {
    // Each operation uses a connection, so a limit above the maximum number of connections would
    // have no effect.
    /// The kind of a key that accepts one of the words or a number of operations.
    pub const KIND: Kind = Kind::IntegerOr {
        accepted: &["auto", "off"],
        min: 1,
        max: MAX_CONNECTIONS,
    };
}

impl Setting for Concurrency {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        match value.as_str() {
            Some("auto") => Some(Self::Auto),
            Some("off") => Some(Self::Off),
            _ => NonZeroU32::read(value, given).map(Self::Fixed),
        }
    }
}

words! {
    /// Compression of exported metrics.
    Compression {
        /// Requests are not compressed.
        None = "none",
        /// Requests are compressed with gzip.
        Gzip = "gzip",
    }
}

words! {
    /// Severity of an event.
    LogLevel {
        /// A part of Seawall does not work.
        Error = "error",
        /// A failure of a server or client, or a risk.
        Warn = "warn",
        /// Starts, drains and changes of the topology.
        Info = "info",
        /// Events of single connections and operations.
        Debug = "debug",
        /// All events.
        Trace = "trace",
    }
}

words! {
    /// The format of the log.
    LogFormat {
        /// One line of text for each event, for people.
        Text = "text",
        /// One JSON object for each event, for programs.
        Json = "json",
    }
}
